"""The store client as a machine: calls that survive lost connections, and watches.

Rule 1: everything that decides when a call is sent, sent again, settled or given up is here.
Rule 2: this file does no I/O and reads no clock. Its shell (`client.py`) feeds it what happens and
    sends what `take_output()` returns, in order, on the current connection.

Theory. A session has a random id and numbers its calls. A call is kept until it is settled: by its
answer, by its caller giving up, or by the loss of the store. When a connection is lost, the next
one begins with Hello; after Welcome every unsettled call is sent again, and the server performs
none of them twice. If the server has another incarnation, the store that we knew is gone, and
with it the session: every call fails, now and later. A replicated store has several members, of
which one leads: a member that does not lead names the leader, and the session goes on there.

Guarantees
    SE-1  A call is settled exactly once.
    SE-2  A call is sent again only to the server life and session that saw it the first time.
    SE-3  A settled failure says truly whether the write may have happened.
    SE-4  A watch delivers, for each key, changes of increasing revision, and in the end the
          newest one, whatever happens to connections (K3). What a call reads while the watch is
          open is part of that: no later change is missing.
    SE-5  A lost session stays lost, and says why.
    SE-6  A session that was given several endpoints begins only at a store with several members,
          and one that knows several members is not lost because another store has come up at the
          address of one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Generic, TypeVar, assert_never

from holdfast.errors import (
    Fenced,
    HoldfastError,
    LeaseLost,
    PeerViolation,
    StoreUnavailable,
    TimeoutExpired,
    Unavailable,
    UsageError,
)
from holdfast.ids import SessionId
from holdfast.net.frames import FRAME_BYTES_MAX
from holdfast.store.messages import (
    CALLS_MAX,
    WATCHES_MAX,
    CallFailure,
    Cancel,
    Changed,
    FromClient,
    Hello,
    Members,
    Parting,
    Ping,
    Pong,
    Reply,
    WatchClose,
    WatchOpen,
    WatchSnapshot,
    Welcome,
    Why,
    decode_from_server,
    encode,
    encode_call,
)
from holdfast.store.ops import WRITES, Change, Op
from holdfast.store.pending import Pending
from holdfast.store.wire import decode_result

__all__ = ["SILENCE_S", "PendingCall", "Session", "WatchState", "missing_keys"]

SILENCE_S = 5.0
"""After this long without a word from the server, ask; as long again, and the connection is dead.

Only a client that listens notices silence, so it asks before it judges.
"""

R = TypeVar("R")


class _Phase(Enum):
    APART = auto()
    GREETING = auto()
    READY = auto()
    LOST = auto()


@dataclass(eq=False, slots=True)
class PendingCall(Generic[R]):
    """One call. Its shell waits until `done`, then asks for `outcome()`."""

    op: Op[R]
    number: int
    sent: bool = False
    done: bool = False
    _result: Any = None
    _error: HoldfastError | None = None

    def outcome(self) -> R:
        """Return the result or raise the failure of a call that is done."""
        if self._error is not None:
            raise self._error
        result: R = self._result
        return result


@dataclass(eq=False, slots=True)
class WatchState:
    """One watch: what was learned and not read yet."""

    id: int
    key: str
    prefix: bool
    pending: Pending
    synced: bool = False
    """True once the first snapshot is complete."""
    # The keys that exist as far as we told, and the parts of a snapshot that is arriving.
    known: dict[str, int] = field(default_factory=dict)
    arriving: dict[str, Change] = field(default_factory=dict)


class Session:
    """The machine. Not thread-safe: its shell holds a lock."""

    def __init__(self, session_id: SessionId, endpoint: str, *, several: bool = False) -> None:
        self.id = session_id
        self._endpoint = endpoint
        self._several = several
        self.members: Members | None = None
        """Where the members of a replicated store are, as far as was told."""
        self._told = False  # on this connection
        self._phase = _Phase.APART
        self._incarnation = 0
        self._next_number = 1
        # Unsettled calls by number, in order; and the writes among them.
        self._calls: dict[int, PendingCall[Any]] = {}
        self._writes: dict[int, None] = {}
        self._next_watch = 1
        self._watches: dict[int, WatchState] = {}
        self._output: list[bytes] = []
        # When the server last said something; and when we asked it to, if we wait for that.
        self._heard_at = 0.0
        self._asked_at: float | None = None
        self.lost: str | None = None
        """Why the session is lost, or None while it is not."""

    # What the user wants.

    def begin(self, op: Op[R]) -> PendingCall[R]:
        """Begin a call; it goes out as soon as there is a connection."""
        call = PendingCall(op, self._next_number)
        if self.lost is not None:
            self._fail(call, StoreUnavailable(self.lost, address=self._endpoint))
            return call
        if len(self._calls) >= CALLS_MAX:
            self._fail(call, UsageError(f"more than {CALLS_MAX} calls at one time"))
            return call
        self._next_number += 1
        self._calls[call.number] = call
        if isinstance(op, WRITES):
            self._writes[call.number] = None
        if self._phase is _Phase.READY:
            self._send_call(call)
        return call

    def cancel(self, call: PendingCall[R]) -> None:
        """Ask the server to answer a wait now, with what is missing."""
        if not call.done and self._phase is _Phase.READY:
            self._say(Cancel(call.number))

    def abandon(self, call: PendingCall[R]) -> bool:
        """Give a call up and say whether it may have been performed (SE-3)."""
        self._settle(call.number)
        call.done = True
        return call.sent and isinstance(call.op, WRITES)

    def open_watch(self, key: str, prefix: bool) -> WatchState:
        """Begin a watch; it is `synced` once its first state has arrived."""
        if len(self._watches) >= WATCHES_MAX:
            raise UsageError(f"more than {WATCHES_MAX} watches at one time")
        watch = WatchState(self._next_watch, key, prefix, Pending(key, prefix))
        self._next_watch += 1
        self._watches[watch.id] = watch
        if self._phase is _Phase.READY:
            self._say(WatchOpen(watch.id, watch.prefix, watch.key))
        return watch

    def close_watch(self, watch: WatchState) -> None:
        """End a watch. Idempotent."""
        if self._watches.pop(watch.id, None) is not None and self._phase is _Phase.READY:
            self._say(WatchClose(watch.id))
            self._say(Ping())  # the answer wakes a thread that reads for this watch

    # What happens.

    @property
    def ready(self) -> bool:
        """Say whether a server has welcomed us on the current connection."""
        return self._phase is _Phase.READY

    @property
    def met(self) -> bool:
        """Say whether a server has ever welcomed us."""
        return self._incarnation != 0

    def connected(self, now: float) -> None:
        """Hear of a new, authenticated connection."""
        self._phase = _Phase.GREETING
        self._told = False
        self._output.clear()
        self._heard_at = self._asked_at = now
        self._say(Hello(self.id, self._incarnation, self._floor()))

    def disconnected(self) -> None:
        """Hear that the connection is over."""
        if self._phase is not _Phase.LOST:
            self._phase = _Phase.APART
        self._output.clear()

    def receive(self, payload: bytes, now: float) -> None:
        """Take one frame. PeerViolation or Unavailable means: drop the connection."""
        self._heard_at, self._asked_at = now, None
        message = decode_from_server(payload)
        if self._phase is _Phase.GREETING and not isinstance(message, (Welcome, Members)):
            raise PeerViolation("the first message must be Welcome")
        match message:
            case Reply(number, result):
                self._replied(number, result)
            case Changed(watch, change):
                if state := self._watches.get(watch):
                    self._changed(state, change)
            case WatchSnapshot():
                if state := self._watches.get(message.watch):
                    self._snapshot(state, message)
            case CallFailure():
                self._failed(message)
            case Welcome():
                self._welcomed(message)
            case Pong():
                pass
            case Members():
                self._learned(message)
            case _:
                assert_never(message)

    def tick(self, now: float) -> bool:
        """Let time pass; False means that the server is silent and the connection is dead.

        Then send what there is to send before closing: the server may hear, though we do not.
        """
        if self._phase is _Phase.APART or self._phase is _Phase.LOST:
            return True
        if self._asked_at is not None and now - self._asked_at >= SILENCE_S:
            self._say(Parting())
            return False
        if self._asked_at is not None:
            return True
        if now - self._heard_at >= SILENCE_S:
            self._asked_at = now
            self._say(Ping())
        return True

    def lose(self, reason: str) -> None:
        """Give the store up for good: fail every call, now and later (SE-5)."""
        if self.lost is not None:
            return
        self.lost = reason
        self._phase = _Phase.LOST
        self._output.clear()
        calls = list(self._calls.values())
        self._calls.clear()
        self._writes.clear()
        for call in calls:
            self._fail(call, self._unavailable(call, reason))

    @property
    def quiet(self) -> bool:
        """Say whether there is nothing to send."""
        return not self._output

    def take_output(self) -> list[bytes]:
        """Return the frames to send, in order, and forget them."""
        output, self._output = self._output, []
        return output

    # Parts.

    def _floor(self) -> int:
        """Return the number below which every write is settled. A long wait does not hold it."""
        return next(iter(self._writes), self._next_number)

    def _settle(self, number: int) -> PendingCall[Any] | None:
        self._writes.pop(number, None)
        return self._calls.pop(number, None)

    def _say(self, message: FromClient) -> None:
        self._output.append(encode(message))

    def _send_call(self, call: PendingCall[Any]) -> None:
        payload = encode_call(call.number, self._floor(), call.op)
        if len(payload) > FRAME_BYTES_MAX:
            size = f"{len(payload)} bytes, at most {FRAME_BYTES_MAX} fit into one call"
            self._settle(call.number)
            self._fail(call, UsageError(f"{type(call.op).__name__.lower()}: {size}"))
            return
        call.sent = True
        self._output.append(payload)

    def _welcomed(self, welcome: Welcome) -> None:
        if self._phase is not _Phase.GREETING:
            raise PeerViolation("Welcome was not asked for")
        if self._incarnation not in (0, welcome.incarnation):
            if self._several or self.members is not None:  # SE-6
                raise Unavailable("another store has come up there", address=self._endpoint)
            self.lose(f"the store at {self._endpoint} was restarted: its keys are gone")
            return
        if self._several and not self._told:
            raise Unavailable("the store there has one member", address=self._endpoint)
        if self._incarnation and not welcome.resumed:
            self._session_forgotten()
        self._incarnation = welcome.incarnation
        self._phase = _Phase.READY
        # Watches first: a caller that lists what it watches must hear of every change since.
        for watch in self._watches.values():
            watch.arriving.clear()
            self._say(WatchOpen(watch.id, watch.prefix, watch.key))
        for call in list(self._calls.values()):
            self._send_call(call)

    def _learned(self, members: Members) -> None:
        self.members = members
        self._told = True
        if not members.here:
            where = f"the leader is {members.leader}" if members.leader else "no leader is known"
            raise Unavailable(f"the member does not lead: {where}", address=self._endpoint)

    def _session_forgotten(self) -> None:
        """Fail the writes whose fate the server no longer knows (SE-2); reads go out again."""
        reason = f"the store at {self._endpoint} forgot this client while it was away"
        for call in [c for c in self._calls.values() if c.sent and isinstance(c.op, WRITES)]:
            self._settle(call.number)
            self._fail(call, self._unavailable(call, reason))

    def _unavailable(self, call: PendingCall[R], reason: str) -> StoreUnavailable:
        maybe = call.sent and isinstance(call.op, WRITES)
        return StoreUnavailable(reason, address=self._endpoint, maybe_applied=maybe)

    def _replied(self, number: int, result: bytes) -> None:
        call = self._calls.get(number)
        if call is None:
            return  # given up meanwhile, or answered twice
        call._result = decode_result(call.op, result)
        call.done = True
        self._settle(number)

    def _failed(self, failure: CallFailure) -> None:
        call = self._settle(failure.number)
        if call is None:
            return
        match failure.why:
            case Why.USAGE:
                self._fail(call, UsageError(failure.text))
            case Why.LEASE_LOST:
                self._fail(call, LeaseLost(failure.text, address=self._endpoint))
            case Why.FENCED:
                self._fail(call, Fenced(failure.text, address=self._endpoint))
            case Why.CANCELLED:
                self._fail(call, missing_keys(failure.keys))
            case _:
                assert_never(failure.why)

    def _fail(self, call: PendingCall[R], error: HoldfastError) -> None:
        call._error = error
        call.done = True

    def _changed(self, watch: WatchState, change: Change) -> None:
        if change.value is None:
            watch.known.pop(change.key, None)
        else:
            watch.known[change.key] = change.revision
        watch.pending.offer((change,))

    def _snapshot(self, watch: WatchState, part: WatchSnapshot) -> None:
        for entry in part.entries:
            watch.arriving[entry.key] = Change(entry.key, entry.value, entry.revision)
        if not part.last:
            return
        arrived, watch.arriving = watch.arriving, {}
        for key in [key for key in watch.known if key not in arrived]:
            self._changed(watch, Change(key, None, part.revision))
        for change in arrived.values():
            if watch.known.get(change.key) != change.revision:
                self._changed(watch, change)
        watch.synced = True


def missing_keys(keys: Iterable[str]) -> TimeoutExpired:
    """Make the error of a wait that ended before its keys were there."""
    missing = tuple(keys)
    shown = ", ".join(map(repr, missing[:10])) + (", …" if len(missing) > 10 else "")
    return TimeoutExpired(f"wait: still missing {shown}", waiting_for=missing)
