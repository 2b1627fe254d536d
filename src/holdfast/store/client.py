"""The client of `tcp://` stores, without a thread of its own.

The shell around `session.py`. A waiting thread reads: the first thread that waits for something
drives the connection, for itself and for the others, and hands over when it has what it came
for. So a call costs one write and one read on the caller's own thread, and an idle client costs
nothing. What arrives while no thread waits stays in the kernel's buffer, or merged at the server.

Guarantees
    CL-1  A call ends at its deadline, plus one short exchange for a wait that asks what is missing.
    CL-2  A lost connection is made again, with growing pauses, for as long as RECONNECT_WITHIN_S;
          then the store counts as lost, and every call says so. A try that only its caller's
          own deadline cut short loses nothing.
    CL-4  Of a store with several members the one that leads is found, by any of them, and found
          again when it has died; only the loss of all connections for RECONNECT_WITHIN_S counts.
    CL-3  A forked child gets a session of its own and leaves its parent's connection alone.
"""

from __future__ import annotations

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
from holdfast.forks import in_child
from holdfast.ids import SessionId, new_session_id
from holdfast.net.transport import Transport
from holdfast.store.messages import Members
from holdfast.store.ops import Change, Op, Wait
from holdfast.store.session import PendingCall, Session, WatchState, missing_keys
from holdfast.store.store import Store, Watch

__all__ = ["RECONNECT_WITHIN_S", "Dial", "RemoteStore"]

Dial = Callable[[Deadline], Transport]
"""Make a new authenticated connection to the server, or raise."""

RECONNECT_WITHIN_S = 10.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.01, 1.0
PAUSE_AMONG_MEMBERS_MAX_S = 0.5
CANCEL_WITHIN_S = 1.0
SEND_WITHIN_S = 30.0
_READ_S = 1.0
_DOUBLINGS_MAX = 10

R = TypeVar("R")
Done = Callable[[], bool]


class RemoteStore(Store):
    """A store on a server. `connect()` before use; safe for many threads."""

    def __init__(
        self,
        endpoint: str,
        dial: Dial,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        several: bool = False,
        learn: Callable[[Members], None] = lambda members: None,
    ) -> None:
        """`several` if several endpoints were given; `learn` hears where the members are."""
        self.endpoint = endpoint
        self._dial = dial
        self._several = several
        self._learn = learn
        self._clock = clock
        self._rng = rng or random.SystemRandom()
        self._closed = False
        self._begin_life()
        in_child(self, RemoteStore._forked)  # CL-3

    def _forked(self) -> None:
        """Begin anew in a forked child: the connection is its parent's."""
        inherited = self._transport
        self._begin_life()
        if inherited is not None:
            inherited.release()

    def _begin_life(self) -> None:
        """Make the parts that belong to one process."""
        self._session = Session(new_session_id(self._rng), self.endpoint, several=self._several)
        self._members: Members | None = None
        self._lock = threading.Lock()  # guards everything
        # True while some thread reads, connects or pauses on behalf of all.
        self._driven = False
        # Threads that wait while another one drives: what for, and how to wake them.
        self._waiting: dict[threading.Condition, Done] = {}
        # True while some thread sends, without the lock, what there is to send.
        self._sending = False
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
        with self._lock:
            self._check_open()
            if not self._drive(lambda: self._session.ready, deadline):
                raise self._apart(f"no store at {self.endpoint} in time", maybe=False)

    @property
    def session_id(self) -> SessionId:
        """The name by which the store knows this client."""
        return self._session.id

    @property
    def members(self) -> tuple[str, ...]:
        """Where the members of a store with several are, as was last told; else nothing."""
        members = self._session.members
        return members.members if members is not None else ()

    # The backend.

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        with self._lock:
            self._check_open()
            call = self._session.begin(op)
            try:
                self._flush(deadline)
                if not self._drive(lambda: call.done, deadline):
                    self._give_up(call)
            except BaseException:  # interrupted, say: no thread waits for it any more
                self._session.cancel(call)
                self._session.abandon(call)
                raise
            return call.outcome()

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        with self._lock:
            self._check_open()
            state = self._session.open_watch(key, prefix)
            try:
                self._flush(deadline)
                if not self._drive(lambda: state.synced, deadline):
                    raise self._late(f"watch of {key!r:.80}", maybe=False)
            except BaseException:
                self._session.close_watch(state)
                raise
            return _RemoteWatch(self, state)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            transport, self._transport = self._transport, None
            self._wake()
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

    def _late(self, what: str, *, maybe: bool) -> HoldfastError:
        """Make the error for something that the server did not answer in time, or never got."""
        if self._transport is None:
            return self._apart(f"{what} at {self.endpoint} did not end in time", maybe=maybe)
        return TimeoutExpired(f"{what} at {self.endpoint}: no answer in time", maybe_applied=maybe)

    def _give_up(self, call: PendingCall[R]) -> None:
        """End a call whose deadline has passed: settle it after all, or raise."""
        op = call.op
        if isinstance(op, Wait) and self._session.ready:
            grace = Deadline.after(CANCEL_WITHIN_S, self._clock)  # CL-1
            self._session.cancel(call)
            self._flush(grace)
            if self._drive(lambda: call.done, grace):
                return
        maybe = self._session.abandon(call)
        if isinstance(op, Wait) and self._transport is not None:
            raise missing_keys(op.keys)
        raise self._late(type(op).__name__.lower(), maybe=maybe)

    def _drive(self, done: Done, deadline: Deadline) -> bool:
        """Let things happen until `done()`; False at the deadline. Raise if the store is lost."""
        try:
            while not done():
                self._check_open()
                if self._session.lost is not None:
                    raise StoreUnavailable(self._session.lost, address=self.endpoint)
                if deadline.passed():
                    return False
                if self._driven:
                    self._follow(done, deadline)
                else:
                    self._driven = True
                    try:
                        self._step(deadline)
                    finally:
                        self._driven = False
            return True
        finally:
            if self._waiting and not self._driven:  # a thread that leaves hands over
                next(iter(self._waiting)).notify()

    def _follow(self, done: Done, deadline: Deadline) -> None:
        """Wait while another thread drives, until it has what we want, or hands over."""
        turn = threading.Condition(self._lock)
        self._waiting[turn] = done
        try:
            turn.wait(deadline.remaining())
        finally:
            del self._waiting[turn]

    def _wake(self) -> None:
        """Wake the threads that have what they wait for, or will not get it."""
        over = self._closed or self._session.lost is not None
        for turn, done in self._waiting.items():
            if over or done():
                turn.notify()

    def _step(self, deadline: Deadline) -> None:
        if self._transport is None:
            self._reconnect(deadline)
        else:
            self._read(self._transport, deadline)
        if self._waiting:
            self._wake()

    def _read(self, transport: Transport, deadline: Deadline) -> None:
        remaining = deadline.remaining()
        wait_s = _READ_S if remaining is None or remaining > _READ_S else remaining
        frames: list[bytes] = []
        failure: HoldfastError | None = _INTERRUPTED
        self._lock.release()
        try:
            frames = transport.receive(wait_s)
            failure = None
        except (Unavailable, PeerViolation) as error:
            failure = error
        finally:
            self._lock.acquire()
            if failure is not None:
                self._disconnected(transport, failure)
        if self._transport is not transport:
            return  # closed meanwhile
        now = self._clock.monotonic()
        try:
            for payload in frames:
                self._session.receive(payload, now)
            if not frames and not self._session.tick(now):
                self._flush(Deadline.after(CANCEL_WITHIN_S, self._clock))
                raise Unavailable(f"{self.endpoint} is silent", address=self.endpoint)
        except (Unavailable, PeerViolation) as error:
            self._disconnected(transport, error)
        if self._session.members is not self._members:
            self._members = self._session.members
            if self._members is not None:
                self._learn(self._members)
        if self._session.lost is not None:
            self._drop(transport)
        self._flush(deadline)

    def _flush(self, deadline: Deadline) -> None:
        """Send what there is to send, unless another thread is at it: it sends this as well."""
        if self._sending or self._session.quiet:
            return
        limit = deadline if deadline.at is not None else deadline.sooner(SEND_WITHIN_S)
        self._sending = True
        try:
            while self._transport is not None and not self._session.quiet:
                self._send(self._transport, self._session.take_output(), limit)
        finally:
            self._sending = False

    def _send(self, transport: Transport, frames: list[bytes], deadline: Deadline) -> None:
        failure: HoldfastError | None = _INTERRUPTED
        self._lock.release()  # a peer that does not read stops this thread only
        try:
            for payload in frames:
                transport.send(payload, deadline)
            failure = None
        except Unavailable as error:
            failure = error
        finally:
            self._lock.acquire()
            if failure is not None:
                self._disconnected(transport, failure)

    def _disconnected(self, transport: Transport, failure: HoldfastError) -> None:
        if self._transport is not transport:
            return  # known already, or closed
        self._drop(transport)
        was_ready = self._session.ready
        self._session.disconnected()
        now = self._clock.monotonic()
        if now - self._connected_at > PAUSE_MAX_S:
            self._tries = 0
        if was_ready:
            self._apart_since = now
        self._failure = failure
        self._pause(now)
        self._judge_absence(failure, now)

    def _drop(self, transport: Transport) -> None:
        self._transport = None
        transport.close()

    def _pause(self, now: float) -> None:
        """Decide when to connect next: at once after a good connection, then ever later."""
        doublings = min(self._tries, _DOUBLINGS_MAX)
        longest = PAUSE_AMONG_MEMBERS_MAX_S if self._has_members else PAUSE_MAX_S
        pause = min(longest, PAUSE_MIN_S * 2**doublings) if self._tries else 0.0
        self._retry_at = now + pause * self._rng.uniform(0.5, 1.0)
        self._tries += 1

    def _reconnect(self, deadline: Deadline) -> None:
        now = self._clock.monotonic()
        if now < self._retry_at:
            self._follow(lambda: False, deadline.sooner(self._retry_at - now))
            return
        if now - self._retry_at > RECONNECT_WITHIN_S:  # no thread has tried: being apart begins now
            self._apart_since, self._tries = now, 0
        found: Transport | HoldfastError
        self._lock.release()
        try:
            found = self._dial(deadline)
        except HoldfastError as error:
            found = error
        finally:
            self._lock.acquire()
        now = self._clock.monotonic()
        if isinstance(found, HoldfastError):
            self._not_connected(found, now, deadline)
        elif self._closed:
            found.close()
        else:
            self._transport = found
            self._connected_at = now
            self._session.connected(now)
            self._flush(deadline)

    def _not_connected(self, failure: HoldfastError, now: float, deadline: Deadline) -> None:
        self._failure = failure
        self._pause(now)
        if isinstance(failure, (Refused, PeerViolation)) and not (
            self._session.met and self._has_members
        ):
            if not self._session.met:
                raise failure
            self._session.lose(f"the store at {self.endpoint} is lost: {failure}")
        elif deadline.passed():
            pass  # it was this caller's haste that cut the try short: it tells nothing of the store
        else:
            self._judge_absence(failure, now)

    @property
    def _has_members(self) -> bool:
        """Say whether another member may be there if one is not."""
        return self._several or self._members is not None

    def _judge_absence(self, failure: HoldfastError, now: float) -> None:
        """Give the store up if no server has served us for too long (CL-2)."""
        if self._session.met and now - self._apart_since > RECONNECT_WITHIN_S:
            self._session.lose(
                f"the store at {self.endpoint} is lost: no connection "
                f"for {now - self._apart_since:.0f} s: {failure}"
            )


_INTERRUPTED = Unavailable("the connection was given up: its thread was interrupted")
"""The failure of a connection on which a foreign exception left half a frame."""


class _RemoteWatch(Watch):
    def __init__(self, store: RemoteStore, state: WatchState) -> None:
        self._store = store
        self._state = state
        self._session = store._session
        self._closed = False

    def _next(self, deadline: Deadline) -> Change:
        store, state = self._store, self._state
        with store._lock:
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
        with store._lock:
            over, self._closed = self._over(), True
            store._wake()
            if not over:
                self._session.close_watch(self._state)
                store._flush(Deadline.after(CANCEL_WITHIN_S, store._clock))
