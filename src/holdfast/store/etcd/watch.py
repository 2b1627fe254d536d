"""Watches on etcd, by either API: events are followed, and never trusted alone.

A watch reads what exists at a revision and then follows the changes after it, on a connection of
its own and on the thread that calls `next`. Whenever that fails, and every few seconds anyway,
it reads everything again and delivers the difference to what it has delivered: etcd's watches have
lost events before, a connection may be dead without saying so, and old revisions may have been
compacted away.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

from holdfast.clock import Deadline
from holdfast.errors import TimeoutExpired, Unavailable, UsageError
from holdfast.store.etcd.http.cluster import EtcdClient, backoff_s
from holdfast.store.etcd.http.connection import Lost, NoAnswer, NotSent
from holdfast.store.ops import Change, Entry
from holdfast.store.pending import Pending
from holdfast.store.store import Watch

__all__ = ["REREAD_S", "ChangeSource", "EtcdWatch", "Snapshot"]

REREAD_S = 5.0
"""How often what the events should have told is read anyway."""

_RECONNECT_S = 0.25
_READS_AT_ONCE = 64
_READ_S, _READ_MAX_S = 1.0, 64.0

Snapshot = Callable[[Deadline], tuple[int, list[Entry]]]
"""Reads everything that is watched: the revision of the store, and the entries."""


class ChangeSource(Protocol):
    """Where the changes come from. One thread reads; any may call `shut`."""

    def open(self, revision: int, deadline: Deadline) -> None:
        """Begin with the changes of `revision`. NotSent or Lost."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether there is something to follow."""
        ...

    def ready(self) -> bool:
        """Say whether `changes` would not wait."""
        ...

    def changes(self, deadline: Deadline) -> list[Change]:
        """Read once and return what is new, perhaps nothing.

        NoAnswer at the deadline; Lost when everything has to be read again.
        """
        ...

    def shut(self) -> None:
        """Wake the reader."""
        ...

    def close(self) -> None:
        """Let the connection go."""
        ...


class EtcdWatch(Watch):
    """See the module's docstring."""

    def __init__(
        self,
        client: EtcdClient,
        key: str,
        prefix: bool,
        source: ChangeSource,
        snapshot: Snapshot,
        forget: Callable[[EtcdWatch], None],
    ) -> None:
        self._client = client
        self._key = key
        self._source = source
        self._snapshot = snapshot
        self._forget = forget
        self._closed = threading.Event()
        self._reading = threading.Lock()  # held by the thread that is in `next`
        self._pending = Pending(key, prefix)
        # The keys that exist as far as was told, and the revision at which each was written.
        self._known: dict[str, int] = {}
        self._floor = 0  # everything up to this revision has been told
        self._reread_at = 0.0
        self._read_s = _READ_S

    def start(self, deadline: Deadline) -> None:
        """Read what exists and begin to follow; raise as the store's operations do."""
        with self._reading:
            self._merge(*self._snapshot(deadline))
            with contextlib.suppress(NotSent, Lost):  # `next` will try again
                self._source.open(self._floor + 1, deadline)

    def close(self) -> None:
        self._closed.set()
        self._source.shut()
        self._forget(self)
        self._reap()

    def _next(self, deadline: Deadline) -> Change:
        remaining = deadline.remaining()
        wait_s = threading.TIMEOUT_MAX if remaining is None else remaining
        if not self._reading.acquire(timeout=min(wait_s, threading.TIMEOUT_MAX)):
            raise self._too_late("another thread reads it")
        try:
            return self._await_change(deadline)
        finally:
            self._reading.release()
            if self._closed.is_set():
                self._reap()

    def _reap(self) -> None:
        """Close the source unless a thread reads it; that thread then calls this itself."""
        if self._reading.acquire(blocking=False):
            try:
                self._source.close()
            finally:
                self._reading.release()

    # Below, the caller holds `_reading`.

    def _await_change(self, deadline: Deadline) -> Change:
        failures = 0
        why = "no change"
        while True:
            if self._closed.is_set():
                raise UsageError(f"the watch of {self._key!r:.80} is closed")
            self._client.check_open()
            try:
                self._take_what_came()
                change = self._pending.take()
                if change is not None:
                    return change
                self._follow(deadline)
                failures, why = 0, "no change"
            except NoAnswer:
                pass  # nothing came in time
            except (NotSent, Lost) as error:
                self._source.close()
                failures, why = failures + 1, str(error)
                if failures > 1:  # the first time it is enough to read again
                    pause = deadline.sooner(backoff_s(failures, self._client.rng))
                    self._closed.wait(pause.remaining())
            if not self._pending and not self._source.ready() and deadline.passed():
                raise self._too_late(why)

    def _take_what_came(self) -> None:
        """Merge what is already here, so that the newest is what gets delivered."""
        for _ in range(_READS_AT_ONCE):
            if not self._source.ready():
                return
            self._apply(self._source.changes(self._soon()))

    def _follow(self, deadline: Deadline) -> None:
        """Wait for changes; connect or read again when it is time."""
        now = self._client.clock.monotonic()
        if not self._source.is_open or now >= self._reread_at:
            self._reread(deadline)
        else:
            self._apply(self._source.changes(deadline.sooner(self._reread_at - now)))

    def _reread(self, deadline: Deadline) -> None:
        """Read everything, note the difference, and make sure that there is a source."""
        if deadline.passed():  # a caller that polls with no time must get new events, too
            deadline = self._soon()
        try:
            # In short turns, between which a watch that was closed is noticed.
            revision, entries = self._snapshot(deadline.sooner(self._read_s))
        except TimeoutExpired as error:  # there may be much to read, or a slow way
            self._read_s = min(2 * self._read_s, _READ_MAX_S)
            raise Lost(str(error)) from None
        except Unavailable as error:
            raise Lost(str(error)) from None
        self._read_s = _READ_S
        if self._merge(revision, entries) or not self._source.is_open:
            # Anew in any case: a source that missed something is not trusted.
            self._source.open(self._floor + 1, deadline)

    def _merge(self, revision: int, entries: list[Entry]) -> bool:
        """Note how the entries differ from what was told; say whether they do."""
        changes = [
            Change(*entry) for entry in entries if entry.revision > self._known.get(entry.key, 0)
        ]
        gone = self._known.keys() - {entry.key for entry in entries}
        for key in sorted(gone):
            self._note(Change(key, None, revision))
        if self._floor:  # later on in the order of time, at first in that of the keys
            changes.sort(key=lambda change: change.revision)
        for change in changes:
            self._note(change)
        self._floor = revision
        self._reread_at = self._client.clock.monotonic() + REREAD_S
        return bool(changes or gone)

    def _apply(self, changes: list[Change]) -> None:
        for change in changes:
            if change.revision > max(self._floor, self._known.get(change.key, 0)):
                self._note(change)

    def _note(self, change: Change) -> None:
        self._pending.offer([change])
        if change.value is None:
            self._known.pop(change.key, None)
        else:
            self._known[change.key] = change.revision

    def _soon(self) -> Deadline:
        return Deadline.after(_RECONNECT_S, self._client.clock)

    def _too_late(self, why: str) -> TimeoutExpired:
        return TimeoutExpired(
            f"watch of {self._key!r:.80}: {why} in time", waiting_for=(self._key,)
        )
