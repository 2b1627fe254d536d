"""Sends requests again until they are answered.

One mechanism for calls of users (`retries=`) and for messages about references. A request whose try
failed waits for the delay of its policy, and is sent again under the same number. Nobody sleeps
for that: the scheduler's thread sends what nobody waits for, and who waits for an answer sends it
himself, so that a slow connection to one worker does not hold up the calls to others.

Requests of users are marked `once`: the callee runs them once, however often they arrive (see
`server/dedup.py`), and is told when their answers need not be kept. Only a try that told nothing is
repeated, since any answer is final. Messages of the RETRYABLE kinds may run twice; they are not
marked, and sent again whatever went wrong.

Guarantees
    IS-1  Every request is completed exactly once: with its answer, or with why there is none.
    IS-2  It is never sent to another incarnation than the one that it was made for; when that is
          gone, it fails at once.
    IS-3  It is not sent after its deadline, and not waited for when the next try would come later.
    IS-4  After `close` nothing is sent again, and what was open has failed.
    IS-5  What is open is never acknowledged. What is over is, soon, unless more than OPEN_CALLS_MAX
          older requests to the same worker are open.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import (
    CallCancelled,
    CallTimedOut,
    HoldfastError,
    Overloaded,
    PeerLost,
    UsageError,
)
from holdfast.rpc.client.background_reader import TICK_S
from holdfast.rpc.client.deadlines import timed_out
from holdfast.rpc.client.future import Carrier, Driver, Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.pipe import NEVER, Reply
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.wire.acknowledgement import OPEN_CALLS_MAX, encode_acknowledgement
from holdfast.rpc.wire.messages import RETRYABLE, Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = [
    "ACK_BYTES",
    "ACK_DELAY_S",
    "Backoff",
    "RetriedCall",
    "RetriedFuture",
    "RetryingCalls",
    "Sender",
    "check_backoff",
    "note",
]

ACK_DELAY_S = 0.01
"""How long an answer waits to be acknowledged, so that one note can tell of many …"""
ACK_BYTES = 1 << 20
"""… unless they are that large: then they are acknowledged before the next request."""

_SILENT = "No answer came in time."
_log = logging.getLogger("holdfast.rpc")


class Backoff(Protocol):
    """How often to try, and how long to wait in between: a `RetryPolicy`, or what is like one."""

    @property
    def try_s(self) -> float | None:
        """How long one try may take; None for as long as the connection holds."""
        ...

    def delay(self, tried: int) -> float | None:
        """Return how long to wait after so many tries; None to give up."""
        ...

    def exhausted(self) -> str:
        """Return what to say when it has given up."""
        ...


def check_backoff(patience: object) -> None:
    """Refuse what says nothing about trying again."""
    if not hasattr(patience, "exhausted"):
        raise UsageError(f"retries {patience!r:.40}: must be a RetryPolicy, or None")


class Sender(Protocol):
    """What carries a try: an agent's transport."""

    def post(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        """Send a request whose answer `reply` hears; return what a waiter can drive."""
        ...


class RetryingCalls:
    """The requests of one agent that are sent until they are answered."""

    def __init__(
        self,
        me: WorkerInfo,
        sender: Sender,
        numbers: Iterator[int],
        scheduler: Scheduler,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._me = me
        self.sender = sender
        self._numbers = numbers
        self.scheduler = scheduler
        self.clock = clock
        # Guards what follows, and what the requests know of themselves; those who wait between
        # two tries are told of changes.
        self.changed = threading.Condition()
        self._open: dict[str, OrderedDict[int, RetriedCall]] = {}  # by receiver; the oldest first
        self._untold: dict[str, tuple[int, int]] = {}  # the latest that is over; bytes of answers
        self._closed = False

    def post(
        self,
        to: str,
        find: Callable[[], Peer],
        message: Message,
        reply: Reply,
        at: float,
        patience: Backoff,
    ) -> RetriedCall:
        """Send a request to an incarnation, under a number of its own; `reply` hears the outcome.

        `find` returns the receiver, or raises PeerLost while it is not known.
        """
        request = RetriedCall(self, to, find, message, reply, at, patience)
        with self.changed:
            # With the lock: a number that is not among the open ones may be acknowledged.
            message.call = next(self._numbers)
            message.once = message.kind not in RETRYABLE
            self._open.setdefault(to, OrderedDict())[message.call] = request
        request.again(0)
        return request

    def lost(self, to: str, error: PeerLost) -> None:
        """Hear that an incarnation is gone: what is meant for it fails."""
        with self.changed:
            requests = list(self._open.get(to, {}).values())
        for request in requests:
            request.end(error)

    def close(self) -> None:
        """Let everything that is open fail, and send nothing any more. Idempotent."""
        with self.changed:
            self._closed = True
            requests = [request for known in self._open.values() for request in known.values()]
        for request in requests:
            request.end(self.stopped())

    def stopped(self) -> PeerLost:
        """Return why nothing is sent any more."""
        text = f"RPC Agent is no longer running on Node {self._me.id}. Cannot retry message."
        return PeerLost(text, peer=self._me.name)

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._closed

    def __len__(self) -> int:
        """Return how many requests are not completed."""
        with self.changed:
            return sum(map(len, self._open.values()))

    # The callee keeps answers until it is told.

    def over(self, to: str, call: int) -> None:
        """Take out a request that is completed; with the lock held."""
        requests = self._open[to]
        del requests[call]
        if not requests:
            del self._open[to]

    def acknowledge(self, peer: Peer, call: int, size: int) -> None:
        """Let the callee know, soon, that this answer need not be kept. One note tells of many."""
        to = peer.contact.incarnation
        with self.changed:
            if self._closed:
                return
            first = to not in self._untold
            latest, total = self._untold.get(to, (0, 0))
            self._untold[to] = (max(latest, call), total + size)
        if first:
            self.scheduler.submit(partial(self._tell, peer), ACK_DELAY_S)

    def tell_first(self, peer: Peer) -> None:
        """Tell what is untold before more is asked for, if so much is kept that it would matter."""
        if self._untold and self._untold.get(peer.contact.incarnation, (0, 0))[1] >= ACK_BYTES:
            self._tell(peer)

    def _tell(self, peer: Peer) -> None:
        to = peer.contact.incarnation
        with self.changed:
            below = self._untold.pop(to, (0, 0))[0] + 1
            still = list(islice(self._open.get(to, ()), OPEN_CALLS_MAX + 1))
        if below == 1:
            return  # it has been told before a request
        if len(still) > OPEN_CALLS_MAX:
            below = min(below, still.pop())
        note(peer, encode_acknowledgement(below, still))


def note(peer: Peer, message: Message) -> None:
    """Send what is not answered; nobody is told of its failure."""
    try:
        peer.note(message)
    except (OSError, HoldfastError) as error:
        _log.debug("a note to %s was not sent: %s", peer.contact.info, error)


class RetriedFuture(Future[Any]):
    """The future of the answer to such a request, which is its driver."""

    __slots__ = ()

    def _withdraw(self) -> None:
        request = self._driver
        if isinstance(request, RetriedCall):
            request.withdraw()


class RetriedCall:
    """One request, from its first try to its end. It is the driver of who waits for it."""

    def __init__(
        self,
        desk: RetryingCalls,
        to: str,
        find: Callable[[], Peer],
        message: Message,
        reply: Reply,
        at: float,
        patience: Backoff,
    ) -> None:
        self._desk = desk
        self._to = to
        self._find = find
        self._at = at
        self._patience = patience
        # The lock of the desk guards what follows.
        self._message = message
        self._reply: Reply | None = reply
        self._peer: Peer | None = None
        self._tried = 0
        self._due: float | None = 0.0  # when the next try is to be made; None while one is
        self._driver: Driver | None = None
        self._stopped = False

    def stop(self) -> None:
        """Try no more: its answer is not wanted."""
        self.withdraw()
        with self._desk.changed:
            open_ = self._reply is not None
        if open_:
            self._cancel()
        self.end(CallCancelled("it is not sent again"))

    def withdraw(self) -> None:
        """Send nothing more of it: its arguments may change. Whoever calls this stops it, too."""
        with self._desk.changed:
            self._stopped = True
            carrier, call = self._driver, self._message.call
        if isinstance(carrier, Carrier):
            carrier.give_up(call)

    # Trying.

    def again(self, tried: int) -> None:
        """Make the next try, after so many, if nobody else has or does."""
        desk = self._desk
        with desk.changed:
            if self._reply is None or self._tried != tried:
                return
            self._due = None
            tried = self._tried = tried + 1
        if desk.closed:
            self.end(desk.stopped())
            return
        try:
            driver = self._send(tried)
        except Exception as error:
            self._hear(tried, error)
        except BaseException:  # such as an interrupt: nobody knows how far it got
            self._hear(tried, PeerLost("Connection closed by peer (sending was interrupted)"))
            raise
        else:
            with desk.changed:
                if self._reply is not None and self._due is None and self._tried == tried:
                    self._driver = driver
                    desk.changed.notify_all()

    def _send(self, tried: int) -> Driver | None:
        now = self._desk.clock.monotonic()
        at, try_s, message = self._at, self._patience.try_s, self._message
        if now >= at:  # whoever was to send it was held up
            raise TimeoutError
        if tried > 1 and at != NEVER:
            message = replace(message, budget_ms=max(1, int((at - now) * 1000)))
        self._peer = peer = self._find()
        self._desk.tell_first(peer)
        until = at if try_s is None else min(at, now + try_s)
        return self._desk.sender.post(peer, message, partial(self._hear, tried), until)

    def _hear(self, tried: int, answer: Message | Exception) -> None:
        """Hear what came of a try; an answer is welcome even if its try was given up."""
        with self._desk.changed:
            if self._reply is None:
                return
            failed = not isinstance(answer, Message) or (
                answer.kind is Kind.FAILURE and not self._message.once
            )
            if failed and (self._due is not None or self._tried != tried):
                return
        if failed and self._may_repeat(tried, answer):
            self._failed(tried, answer)
        else:
            self.end(answer)

    def _may_repeat(self, tried: int, answer: Message | Exception) -> bool:
        if not self._message.once or isinstance(answer, PeerLost | TimeoutError):
            return True
        # Who has sent nothing yet hears that there is too much; who has would not know the outcome.
        return isinstance(answer, Overloaded) and tried > 1

    def _failed(self, tried: int, failure: Message | Exception) -> None:
        """Wait for the next try, or give up."""
        desk, peer = self._desk, self._peer
        why = str(failure) if isinstance(failure, Exception) else "it was refused"
        _log.debug("%s to %s: try %d failed: %s", self._message.kind.name, self._to, tried, why)
        now = desk.clock.monotonic()
        if now >= self._at:
            self._time_out(f": {why}" if why else "")
        elif peer is not None and peer.lost is not None:
            self.end(peer.lost)  # another incarnation must not run it: it may have run
        elif (delay := self._patience.delay(tried)) is None:
            self._exhausted(failure, why)
        elif now + delay >= self._at:
            self._time_out(f": try {tried} failed ({why}), and another one would come too late")
        else:
            with desk.changed:
                stopped = self._stopped
                if not stopped:
                    self._due, self._driver = now + delay, None
                    desk.changed.notify_all()
            if stopped:
                self.end(CallCancelled("it is not sent again"))
            else:
                desk.scheduler.submit(partial(self.again, tried), delay)

    # The end.

    def _exhausted(self, failure: Message | Exception, why: str) -> None:
        if isinstance(failure, Message):
            self.end(failure)  # it says more than we could
            return
        if isinstance(failure, TimeoutError):  # a peer that is silent may well be alive
            self.end(CallTimedOut(f"{self._patience.exhausted()} {why or _SILENT}"))
            return
        text = f"{self._patience.exhausted()} {why}"
        name = "" if self._peer is None else self._peer.contact.info.name
        self.end(PeerLost(text, peer=name, incarnation=self._to))

    def _time_out(self, why: str) -> None:
        late = timed_out(self._message.budget_ms, self._message.deadline_of)
        self._cancel()
        self.end(CallTimedOut(f"{late}{why}", deadline_of=late.deadline_of))

    def _cancel(self) -> None:
        if self._peer is not None:
            cancel = Message(Kind.CANCEL, self._message.call)
            self._desk.scheduler.submit(partial(note, self._peer, cancel))

    def end(self, answer: Message | Exception) -> None:
        """Complete it, if it is not."""
        desk = self._desk
        with desk.changed:
            reply, self._reply = self._reply, None
            if reply is None:
                return
            call, once = self._message.call, self._message.once
            self._driver = None
            # An errand that comes too late knows this object: it must not keep what is large.
            self._message = Message(self._message.kind, call, once=once)
            desk.over(self._to, call)
            desk.changed.notify_all()
        if once and self._peer is not None and self._peer.lost is None:
            size = answer.size() if isinstance(answer, Message) else 0
            desk.acknowledge(self._peer, call, size)
        reply(answer)

    # For who waits.

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Work until `done()` or the deadline: read the answer, and make the next tries."""
        changed, clock = self._desk.changed, self._desk.clock
        while not done() and not deadline.passed():
            with changed:
                driver, due, tried = self._driver, self._due, self._tried
                if self._reply is None:
                    return
                if driver is None and (due is None or due > clock.monotonic()):
                    until = deadline if due is None else deadline.sooner(due - clock.monotonic())
                    changed.wait(until.remaining())
                    continue
            if driver is None:
                self.again(tried)
            else:
                driver.drive(partial(self._is_past, driver, done), deadline)
                self._wait_past(driver, deadline)

    def _is_past(self, driver: Driver, done: Callable[[], bool]) -> bool:
        return done() or self._driver is not driver

    def _wait_past(self, driver: Driver, deadline: Deadline) -> None:
        """Wait for those to whom a driver has left it: they are about to tell."""
        with self._desk.changed:
            if self._driver is driver:
                self._desk.changed.wait(deadline.sooner(TICK_S).remaining())
