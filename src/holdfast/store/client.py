"""The client of `tcp://` stores, without a thread of its own.

The shell around `session.py`. Whoever waits reads: the first thread that waits for something
drives the connection, for itself and for the others, and hands over when it has what it came
for. So a call costs one write and one read on the caller's own thread, and an idle client costs
nothing. What arrives while nobody waits stays in the kernel's buffer, or merged at the server.

Guarantees
    CL-1  A call ends at its deadline, plus one short exchange for a wait that asks what is missing.
    CL-2  A lost connection is made again, with growing pauses, for as long as RECONNECT_WITHIN_S;
          then the store counts as lost, and every call says so.
    CL-3  A forked child gets a session of its own and leaves its parent's connection alone.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import (
    HoldfastError,
    PeerViolation,
    Refused,
    StoreUnavailable,
    TimeoutExpired,
    Unavailable,
    UsageError,
)
from holdfast.ids import new_session_id
from holdfast.net.transport import Transport
from holdfast.store.ops import Change, Op, Wait
from holdfast.store.session import PendingCall, Session, WatchState, missing_keys
from holdfast.store.store import Store, Watch

__all__ = ["RECONNECT_WITHIN_S", "Dial", "RemoteStore"]

Dial = Callable[[Deadline], Transport]
"""Make a new authenticated connection to the server, or raise."""

RECONNECT_WITHIN_S = 10.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.01, 1.0
CANCEL_WITHIN_S = 1.0
_READ_S = 1.0

R = TypeVar("R")


class RemoteStore(Store):
    """A store on a server. `connect()` before use; safe for many threads."""

    def __init__(
        self,
        endpoint: str,
        dial: Dial,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._dial = dial
        self._clock = clock
        self._rng = rng or random.SystemRandom()
        self._begin_life()

    def _begin_life(self) -> None:
        inherited: Transport | None = getattr(self, "_transport", None)
        if inherited is not None:
            inherited.release()
        self._process = os.getpid()
        self._closed = False
        self._session = Session(new_session_id(self._rng), self.endpoint)
        # Guards everything; notified when the driver stops driving or something was settled.
        self._changed = threading.Condition(threading.Lock())
        # True while some thread reads, connects or pauses on behalf of all.
        self._driven = False
        self._transport: Transport | None = None
        # About connecting: since when we are connected or not, how often we tried since the last
        # good connection, when to try again, and what failed last.
        self._connected_at = 0.0
        self._apart_since = 0.0
        self._tries = 0
        self._retry_at = 0.0
        self._failure: HoldfastError | None = None

    def connect(self, timeout: float | None) -> None:
        """Connect for the first time. Tries again while the server cannot be reached.

        Refused and PeerViolation at once; StoreUnavailable, naming the step, at the deadline.
        """
        deadline = Deadline.after(timeout, self._clock)
        with self._changed:
            if not self._drive(lambda: self._session.ready, deadline):
                raise self._apart(f"no store at {self.endpoint} in time", maybe=False)

    # The backend.

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        if self._process != os.getpid():
            self._begin_life()  # CL-3
        with self._changed:
            self._check_open()
            call = self._session.begin(op)
            self._flush(deadline)
            if not self._drive(lambda: call.done, deadline):
                self._give_up(call)
            return call.outcome()

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        if self._process != os.getpid():
            self._begin_life()  # CL-3
        with self._changed:
            self._check_open()
            state = self._session.open_watch(key, prefix)
            self._flush(deadline)
            if not self._drive(lambda: state.synced, deadline):
                self._session.close_watch(state)
                raise self._apart(f"watch of {key!r:.80} did not open in time", maybe=False)
            return _RemoteWatch(self, state)

    def _close(self) -> None:
        if self._process != os.getpid():
            return  # what there is to close is the parent's
        with self._changed:
            self._closed = True
            self._session.lose(f"the store {self.endpoint} was closed here")
            transport, self._transport = self._transport, None
            self._changed.notify_all()
        if transport is not None:
            transport.close()

    # Below, the caller holds the lock.

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the store {self.endpoint} is closed")

    def _apart(self, what: str, *, maybe: bool) -> StoreUnavailable:
        """Make the error for something that needs a connection which is not there."""
        failure = self._failure
        return StoreUnavailable(
            f"{what}: {failure or 'no answer'}",
            step=failure.step if isinstance(failure, Unavailable) else None,
            address=self.endpoint,
            maybe_applied=maybe,
        )

    def _give_up(self, call: PendingCall[R]) -> None:
        """End a call whose deadline has passed: settle it after all, or raise."""
        op = call.op
        if isinstance(op, Wait) and self._session.ready:
            grace = Deadline.after(CANCEL_WITHIN_S, self._clock)
            self._session.cancel(call)
            self._flush(grace)
            if self._drive(lambda: call.done, grace):
                return
        maybe = self._session.abandon(call)
        name = type(op).__name__.lower()
        if self._transport is None:
            raise self._apart(f"{name} at {self.endpoint} did not end in time", maybe=maybe)
        if isinstance(op, Wait):
            raise missing_keys(op.keys)
        raise TimeoutExpired(f"{name} at {self.endpoint}: no answer in time", maybe_applied=maybe)

    def _drive(self, done: Callable[[], bool], deadline: Deadline) -> bool:
        """Let things happen until `done()`; False at the deadline. Raise if the store is lost."""
        while not done():
            if self._session.lost is not None:
                self._check_open()
                raise StoreUnavailable(self._session.lost, address=self.endpoint)
            if deadline.passed():
                return False
            if self._driven:
                self._changed.wait(deadline.remaining())
                continue
            self._driven = True
            try:
                if self._transport is None:
                    self._reconnect(deadline)
                else:
                    self._read(self._transport, deadline)
            finally:
                self._driven = False
                self._changed.notify_all()
        return True

    def _read(self, transport: Transport, deadline: Deadline) -> None:
        remaining = deadline.remaining()
        wait_s = _READ_S if remaining is None else min(_READ_S, remaining)
        frames: list[bytes] = []
        failure: HoldfastError | None = None
        self._changed.release()
        try:
            frames = transport.receive(wait_s)
        except (Unavailable, PeerViolation) as error:
            failure = error
        finally:
            self._changed.acquire()
        if self._transport is not transport:
            return  # closed meanwhile
        now = self._clock.monotonic()
        try:
            for payload in frames:
                self._session.receive(payload, now)
        except PeerViolation as error:
            failure = error
        if failure is None and not self._session.tick(now):
            failure = Unavailable(f"{self.endpoint} is silent", address=self.endpoint)
        if failure is not None:
            self._disconnected(failure)
        else:
            self._flush(deadline)

    def _flush(self, deadline: Deadline) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            for payload in self._session.take_output():
                transport.send(payload, deadline)
        except Unavailable as error:
            self._disconnected(error)

    def _disconnected(self, failure: HoldfastError) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        self._session.disconnected()
        now = self._clock.monotonic()
        if now - self._connected_at > PAUSE_MAX_S:
            self._tries = 0
        self._apart_since = now
        self._failure = failure
        self._pause(now)

    def _pause(self, now: float) -> None:
        """Decide when to connect next: at once after a good connection, then ever later."""
        pause = min(PAUSE_MAX_S, PAUSE_MIN_S * 2**self._tries) if self._tries else 0.0
        self._retry_at = now + pause * self._rng.uniform(0.5, 1.0)
        self._tries += 1

    def _reconnect(self, deadline: Deadline) -> None:
        pause = self._retry_at - self._clock.monotonic()
        if pause > 0:
            self._changed.wait(deadline.sooner(pause).remaining())
            return
        transport: Transport | None = None
        failure: HoldfastError | None = None
        self._changed.release()
        try:
            transport = self._dial(deadline)
        except HoldfastError as error:
            failure = error
        finally:
            self._changed.acquire()
        now = self._clock.monotonic()
        if failure is not None:
            self._not_connected(failure, now)
        elif transport is not None and self._closed:
            transport.close()
        else:
            self._transport = transport
            self._connected_at = now
            self._session.connected(now)
            self._flush(deadline)

    def _not_connected(self, failure: HoldfastError, now: float) -> None:
        self._failure = failure
        self._pause(now)
        if isinstance(failure, (Refused, PeerViolation)):
            if not self._session.met:
                raise failure
            self._session.lose(f"the store at {self.endpoint} is lost: {failure}")
        elif self._session.met and now - self._apart_since > RECONNECT_WITHIN_S:  # CL-2
            self._session.lose(
                f"the store at {self.endpoint} is lost: no connection "
                f"for {now - self._apart_since:.0f} s: {failure}"
            )


class _RemoteWatch(Watch):
    def __init__(self, store: RemoteStore, state: WatchState) -> None:
        self._store = store
        self._state = state
        self._session = store._session
        self._closed = False

    def _next(self, deadline: Deadline) -> Change:
        store, state = self._store, self._state
        with store._changed:
            if not store._drive(lambda: bool(state.pending) or self._over(), deadline):
                raise TimeoutExpired(
                    f"watch: no change of {state.key!r:.80} in time", waiting_for=(state.key,)
                )
            change = state.pending.take()
            if change is None or self._over():
                raise UsageError(f"the watch of {state.key!r:.80} is closed")
            return change

    def _over(self) -> bool:
        return self._closed or self._store._closed or self._session is not self._store._session

    def close(self) -> None:
        store = self._store
        with store._changed:
            if not self._over():
                self._session.close_watch(self._state)
                store._flush(Deadline.after(CANCEL_WITHIN_S, store._clock))
            self._closed = True
            store._changed.notify_all()
