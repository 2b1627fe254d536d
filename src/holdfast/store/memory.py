"""A store inside one process: the keyspace behind one lock.

For tests, for single-process jobs, and as the shortest example of a backend.
"""

from __future__ import annotations

import threading
from typing import TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import TimeoutExpired, UsageError
from holdfast.store.keyspace import Keyspace
from holdfast.store.ops import Change, Op, Wait
from holdfast.store.pending import Pending
from holdfast.store.store import Store, Watch

__all__ = ["MemoryStore"]

R = TypeVar("R")


class MemoryStore(Store):
    """A store that lives and dies with this object. Leases run on this process's clock."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.endpoint = "memory://"
        self._clock = clock
        self._keyspace = Keyspace()
        # Guards everything below and the keyspace; notified at every change.
        self._changed = threading.Condition()
        self._watches: set[_MemoryWatch] = set()
        self._closed = False

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        with self._changed:
            self._check_open()
            if isinstance(op, Wait):
                self._wait_ready(op, deadline)
            result = self._keyspace.apply(op, self._clock.monotonic())
            self._publish()
            return result

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        with self._changed:
            self._check_open()
            self._refresh()
            watch = _MemoryWatch(self, key, prefix)
            watch.pending.offer(self._keyspace.state_of(key, prefix))
            self._watches.add(watch)
            return watch

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._watches.clear()
            self._changed.notify_all()

    # Below, the caller holds the lock.

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the store {self.endpoint} is closed")

    def _publish(self) -> None:
        changes = self._keyspace.take_changes()
        if changes:
            for watch in self._watches:
                watch.pending.offer(changes)
            self._changed.notify_all()

    def _refresh(self) -> None:
        self._keyspace.expire(self._clock.monotonic())
        self._publish()

    def _wait_ready(self, op: Wait, deadline: Deadline) -> None:
        while True:
            self._refresh()
            missing = self._keyspace.missing(op.keys)
            if not missing:
                return
            if deadline.passed():
                raise TimeoutExpired(
                    f"wait: still missing {', '.join(map(repr, missing[:10]))}",
                    waiting_for=missing,
                )
            self._sleep(deadline)
            self._check_open()

    def _sleep(self, deadline: Deadline) -> None:
        """Wait for a change, the next lease's end, or the deadline."""
        expiry = self._keyspace.next_expiry()
        if expiry is not None:
            deadline = deadline.sooner(max(0.0, expiry - self._clock.monotonic()))
        self._changed.wait(deadline.remaining())


class _MemoryWatch(Watch):
    def __init__(self, store: MemoryStore, key: str, prefix: bool) -> None:
        self._store = store
        self._key = key
        self.pending = Pending(key, prefix)  # guarded by the store's lock
        self._closed = False

    def _next(self, deadline: Deadline) -> Change:
        with self._store._changed:
            while True:
                if self._closed or self._store._closed:
                    raise UsageError(f"the watch of {self._key!r:.80} is closed")
                self._store._refresh()
                change = self.pending.take()
                if change is not None:
                    return change
                if deadline.passed():
                    raise TimeoutExpired(
                        f"watch: no change of {self._key!r:.80} in time", waiting_for=(self._key,)
                    )
                self._store._sleep(deadline)

    def close(self) -> None:
        with self._store._changed:
            self._closed = True
            self._store._watches.discard(self)
            self._store._changed.notify_all()
