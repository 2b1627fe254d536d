"""The calls of an agent: which are open, until when, how many; what is retried, and acknowledged.

Two tables decide about every asynchronous call; shells perform it.

`OpenCalls` has what is under way by one connection, or waits for it to be opened: every call, and
every try of a request that is retried (`client/pipe.py`, `client/connecting.py`). The lock of its
owner guards additions. A removal is one instruction and needs no lock: the thread that reads a
reply, the one that notices a deadline and the one that cancels may race for a call, and exactly one
of them gets it.

`RetryTable` has the requests of an agent that are tried until they have a reply, however many
connections break, and the replies that are to be acknowledged (`client/retrying.py`).

Guarantees
    CA-1  A call is removed once: `remove` returns it to one caller only.
    CA-2  At most `calls_max` calls and `bytes_max` bytes are open; a call beyond that is refused
          with Overloaded. One call may be larger, if it is the only one.
    CA-3  `late` returns every call whose deadline has come, and no other.
    RY-1  A request that must run once is tried again only if a try brought no reply: every reply is
          final. A request of the RETRYABLE kinds is tried again after any failure.
    RY-2  No try is made at or after the deadline, nor after the receiver was lost: another
          incarnation must not run the request, since the first one may have run it.
    RY-3  A request that ends at its deadline is cancelled at its receiver; the error says why the
          last try failed.
    RY-4  A note acknowledges no open call: it names the open ones, or acknowledges only what is
          older than the first that it cannot name.
    RY-5  Each try is begun once, and a request ends once, whichever threads race for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from holdfast.errors import CallTimedOut, Overloaded, PeerLost
from holdfast.rpc.wire.acknowledgement import OPEN_CALLS_MAX, encode_acknowledgement
from holdfast.rpc.wire.messages import NEVER, RETRYABLE, Kind, Message

__all__ = [
    "ACK_BYTES",
    "BYTES_MAX",
    "CALLS_MAX",
    "Again",
    "Backoff",
    "End",
    "OpenCalls",
    "Receiver",
    "Request",
    "RetryTable",
    "Try",
    "after_failure",
    "is_failure",
    "timed_out",
]

CALLS_MAX = 1 << 16
BYTES_MAX = 1 << 30
ACK_BYTES = 1 << 20
"""If the callee keeps that many bytes of replies, they are acknowledged before the next request."""

_SILENT = "No answer came in time."

W = TypeVar("W")
R = TypeVar("R", bound="Request")


class OpenCalls(Generic[W]):
    """Calls by their numbers, each with what waits for it."""

    def __init__(self, doing: str, calls_max: int = CALLS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._doing = doing  # for messages: "calls and … bytes are under way"
        self._calls_max, self._bytes_max = calls_max, bytes_max
        self.open: dict[int, tuple[W, float, int]] = {}
        """By number: what waits for the call, its deadline, and its size. Owners only read this."""
        self._bytes = 0
        self._freed: deque[int] = deque()  # bytes of removed calls, not yet subtracted
        self.soonest = NEVER
        """No call expires before this time."""

    @property
    def numbers(self) -> list[int]:
        """The numbers of all calls, the oldest first."""
        return list(self.open)

    def add(self, call: int, waiter: W, at: float, size: int) -> None:
        """Add a call that expires at the time `at`; Overloaded if too much is open.

        A later try of the same call replaces an open one, whose end no thread waits for any more.
        """
        if call in self.open:
            self.remove(call)
        total = (self.count_bytes() if self._freed else self._bytes) + size
        if len(self.open) >= self._calls_max or size < total > self._bytes_max:
            raise Overloaded(
                f"{len(self.open)} calls and {total - size} bytes {self._doing}: at most "
                f"{self._calls_max} and {self._bytes_max}"
            )
        self._bytes = total
        self.open[call] = (waiter, at, size)
        if at < self.soonest:  # noqa: PLR1730  # min is slower, and this is in every call
            self.soonest = at

    def remove(self, call: int) -> W | None:
        """Remove a call, and return what waits for it; None if it is not open."""
        found = self.open.pop(call, None)
        if found is None:
            return None
        self._freed.append(found[2])
        return found[0]

    def count_bytes(self) -> int:
        """Return how many bytes are open. Not beside `add`."""
        while self._freed:
            freed = self._freed.popleft()
            self._bytes -= freed
        return self._bytes

    def late(self, now: float) -> list[int]:
        """Return the calls whose deadline has come; they stay open."""
        calls = self.open.copy()  # one instruction, like a removal beside it
        return [call for call, (_, at, _) in calls.items() if at <= now]

    def look_again(self) -> None:
        """Find the next deadline, after late calls were removed. Not beside `add`."""
        self.soonest = min((at for _, at, _ in self.open.copy().values()), default=NEVER)


def timed_out(budget_ms: int, deadline_of: str, why: str = "") -> CallTimedOut:
    """Return the error for a call or a fetch that expired; it names the caller of the deadline."""
    text = (
        f"RPC ran for more than set timeout ({budget_ms} ms) and will now be marked with an error"
    )
    if deadline_of:
        text = (
            f"RPC ran for more than the {budget_ms} ms that were left of the call of {deadline_of} "
            "within which it was made; rpc.detached() makes calls that do not inherit a deadline"
        )
    return CallTimedOut(f"{text}: {why}" if why else text, deadline_of=deadline_of)


class Backoff(Protocol):
    """How often to try, and how long to wait in between: a `RetryPolicy` or a similar object."""

    @property
    def try_s(self) -> float | None:
        """How long one try may take; None: until the connection breaks."""
        ...

    def delay(self, tried: int) -> float | None:
        """Return how long to wait after so many tries; None to give up."""
        ...

    def exhausted(self) -> str:
        """Return the error text for a request that is given up."""
        ...


class Again(NamedTuple):
    """Try again after this many seconds."""

    delay_s: float


class End(NamedTuple):
    """End the request with this outcome; `cancel`: tell the receiver that it is not wanted."""

    outcome: Message | Exception
    cancel: bool = False


class Receiver(NamedTuple):
    """The worker that a request is for. `name` is empty while the worker is not known."""

    incarnation: str
    name: str = ""
    lost: PeerLost | None = None


def is_failure(request: Message, answer: Message | Exception) -> bool:
    """Say whether a try has failed: no reply came, or one that does not end the request."""
    if isinstance(answer, Message):
        return answer.kind is Kind.FAILURE and not request.once
    return True


def after_failure(
    request: Message,
    tried: int,
    failure: Message | Exception,
    policy: Backoff,
    to: Receiver,
    now: float,
    at: float,
) -> Again | End:
    """Decide what follows on the failed try number `tried` of a request with the deadline `at`."""
    why = str(failure) if isinstance(failure, Exception) else "it was refused"
    if not _may_repeat(request, tried, failure):
        return End(failure)
    if now >= at:
        return _expired(request, f": {why}" if why else "")
    if to.lost is not None:
        return End(to.lost)
    delay_s = policy.delay(tried)
    if delay_s is None:
        return End(_exhausted(failure, f"{policy.exhausted()} {why}", policy, to))
    if now + delay_s >= at:
        return _expired(
            request, f": try {tried} failed ({why}), and another one would come too late"
        )
    return Again(delay_s)


def _may_repeat(request: Message, tried: int, failure: Message | Exception) -> bool:
    if not request.once or isinstance(failure, PeerLost | TimeoutError):
        return True
    # After the first try nothing has been sent: report Overloaded. After a later one the request
    # may have run: retry.
    return isinstance(failure, Overloaded) and tried > 1


def _exhausted(
    failure: Message | Exception, text: str, policy: Backoff, to: Receiver
) -> Message | Exception:
    if isinstance(failure, Message):
        return failure  # the callee's own error is the most precise one
    if isinstance(failure, TimeoutError):  # a peer that sends nothing may well be alive
        return CallTimedOut(text if str(failure) else f"{policy.exhausted()} {_SILENT}")
    return PeerLost(text, peer=to.name, incarnation=to.incarnation)


def _expired(request: Message, why: str) -> End:
    late = timed_out(request.budget_ms, request.deadline_of)
    return End(CallTimedOut(f"{late}{why}", deadline_of=late.deadline_of), cancel=True)


class Request:
    """A request that is tried until it has a reply, and how far it has come."""

    def __init__(self, to: str, message: Message, at: float, policy: Backoff) -> None:
        self.to = to
        self.message = message
        self.at = at
        self.policy = policy
        self.tried = 0
        self.trying = 0
        """The number of the try that is under way, so that its failure counts; 0 if none is."""
        self.due = 0.0
        """The time of the next try, if none is under way."""
        self.is_open = True
        self.stopped = False


class Try(NamedTuple):
    """Send this message, after the note if there is one; the try has failed at the time `until`."""

    number: int
    message: Message
    until: float
    note: Message | None


class RetryTable(Generic[R]):
    """The requests that are open, by receiver; one lock guards them and this table."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, R]] = {}  # the oldest first
        # By receiver: the latest reply that is not acknowledged, and the bytes of all of them.
        self._replies: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def requests(self, to: str | None = None) -> list[R]:
        """Return the open requests to an incarnation, or all of them."""
        tables = self._open.values() if to is None else [self._open.get(to, {})]
        return [request for table in tables for request in table.values()]

    def add(self, request: R, call: int) -> None:
        """Add a request under a new number. No number beyond those in this table may be open."""
        message = request.message
        message.call = call
        message.once = message.kind not in RETRYABLE
        self._open.setdefault(request.to, {})[call] = request

    def begin(self, request: R, tried: int, now: float) -> Try | None:
        """Begin the next try after `tried` tries, unless it has begun or the request is over."""
        if not request.is_open or request.stopped or request.tried != tried:
            return None
        request.tried = request.trying = tried + 1
        message, at, try_s = request.message, request.at, request.policy.try_s
        if tried and at != NEVER:
            message = replace(message, budget_ms=max(1, int((at - now) * 1000)))
        urgent = self._replies and self._replies.get(request.to, (0, 0))[1] >= ACK_BYTES
        note = self.acknowledge(request.to) if urgent else None
        return Try(tried + 1, message, at if try_s is None else min(at, now + try_s), note)

    def put_off(self, request: R, due: float) -> bool:
        """Wait for the next try; False if the request was stopped."""
        request.trying, request.due = 0, due
        return not request.stopped

    def end(self, request: R, reply_bytes: int | None) -> bool:
        """Remove an open request; return whether a note must be sent soon.

        `reply_bytes`: how much the receiver keeps of the reply; None if it need not know.
        """
        to, message = request.to, request.message
        request.is_open, request.trying = False, 0
        # A scheduled task may still refer to this object: drop the large message.
        request.message = Message(message.kind, message.call, once=message.once)
        requests = self._open[to]
        del requests[message.call]
        if not requests:
            del self._open[to]
        if reply_bytes is None or not message.once:
            return False
        latest, total = self._replies.get(to, (0, 0))
        self._replies[to] = (max(latest, message.call), total + reply_bytes)
        return not latest

    def acknowledge(self, to: str) -> Message | None:
        """Return the note that acknowledges all replies; None if an earlier one has."""
        ack_floor = self._replies.pop(to, (0, 0))[0] + 1
        if ack_floor == 1:
            return None
        still = list(islice(self._open.get(to, ()), OPEN_CALLS_MAX + 1))
        if len(still) > OPEN_CALLS_MAX:
            ack_floor = min(ack_floor, still.pop())
        return encode_acknowledgement(ack_floor, still)
