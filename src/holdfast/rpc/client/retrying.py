"""Retries requests until a reply comes.

Users' calls (`retries=`) and messages about references share this mechanism. After a failed try, a
request waits for the delay of its policy, and is sent again under the same number. No thread
sleeps for the delay: the scheduler's thread retries requests on which no thread waits, and a thread
that waits for a reply retries its own request. So a slow connection to one worker does not delay
calls to others.

Users' requests are marked `once`: the callee runs such a request once, however often it arrives
(see `server/dedup.py`), and the caller acknowledges its reply when the callee need not keep it any
longer. Such a request is retried only if a try brought no reply, since every reply is final.
Messages of the RETRYABLE kinds may run twice; they are not marked, and are retried after any
failure.

Guarantees
    IS-1  Every request is completed exactly once: with its reply, or with the reason why none came.
    IS-2  A request is never sent to another incarnation than the one that it was made for; when
          that incarnation is gone, the request fails at once.
    IS-3  A request is not sent after its deadline, and fails at once if the next try would be later
          than the deadline.
    IS-4  After `close` nothing is sent again, and all open requests have failed.
    IS-5  An open request is never acknowledged. A completed one is acknowledged soon, unless more
          than OPEN_CALLS_MAX older requests to the same worker are open.
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
"""How long an acknowledgement is delayed, so that one note can acknowledge many replies …"""
ACK_BYTES = 1 << 20
"""… unless these have that many bytes: then it is sent before the next request."""

_SILENT = "No answer came in time."
_log = logging.getLogger("holdfast.rpc")


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


def check_backoff(patience: object) -> None:
    """Raise UsageError if this is not a retry policy."""
    if not hasattr(patience, "exhausted"):
        raise UsageError(f"retries {patience!r:.40}: must be a RetryPolicy, or None")


class Sender(Protocol):
    """Sends one try of a request: an agent's transport."""

    def post(self, peer: Peer, message: Message, reply: Reply, at: float) -> Driver | None:
        """Send a request, and call `reply` with the outcome; return what a waiter can drive."""
        ...


class RetryingCalls:
    """The requests of one agent that are retried until a reply comes."""

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
        # Guards the fields below and the state of the requests; threads that wait between two
        # tries are notified of changes.
        self.changed = threading.Condition()
        self._open: dict[str, OrderedDict[int, RetriedCall]] = {}  # by receiver; the oldest first
        self._untold: dict[str, tuple[int, int]] = {}  # the latest completed call; bytes of replies
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
        """Send a request to an incarnation under a new number; call `reply` with the outcome.

        `find` returns the receiver, or raises PeerLost while the receiver is not known.
        """
        request = RetriedCall(self, to, find, message, reply, at, patience)
        with self.changed:
            # With the lock: a number that is not in `_open` may be acknowledged.
            message.call = next(self._numbers)
            message.once = message.kind not in RETRYABLE
            self._open.setdefault(to, OrderedDict())[message.call] = request
        request.again(0)
        return request

    def lost(self, to: str, error: PeerLost) -> None:
        """Fail all requests to an incarnation that is gone."""
        with self.changed:
            requests = list(self._open.get(to, {}).values())
        for request in requests:
            request.end(error)

    def close(self) -> None:
        """Fail all open requests, and send nothing any more. Idempotent."""
        with self.changed:
            self._closed = True
            requests = [request for known in self._open.values() for request in known.values()]
        for request in requests:
            request.end(self.stopped())

    def stopped(self) -> PeerLost:
        """Return the error for requests after `close`."""
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

    # The callee keeps replies until they are acknowledged.

    def over(self, to: str, call: int) -> None:
        """Remove a completed request; with the lock held."""
        requests = self._open[to]
        del requests[call]
        if not requests:
            del self._open[to]

    def acknowledge(self, peer: Peer, call: int, size: int) -> None:
        """Acknowledge this reply soon: the callee need not keep it. One note acknowledges many."""
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
        """Acknowledge replies before the next request, if the callee keeps many bytes of them."""
        if self._untold and self._untold.get(peer.contact.incarnation, (0, 0))[1] >= ACK_BYTES:
            self._tell(peer)

    def _tell(self, peer: Peer) -> None:
        to = peer.contact.incarnation
        with self.changed:
            below = self._untold.pop(to, (0, 0))[0] + 1
            still = list(islice(self._open.get(to, ()), OPEN_CALLS_MAX + 1))
        if below == 1:
            return  # `tell_first` has acknowledged them already
        if len(still) > OPEN_CALLS_MAX:
            below = min(below, still.pop())
        note(peer, encode_acknowledgement(below, still))


def note(peer: Peer, message: Message) -> None:
    """Send a message that has no reply; a failure is only logged."""
    try:
        peer.note(message)
    except (OSError, HoldfastError) as error:
        _log.debug("a note to %s was not sent: %s", peer.contact.info, error)


class RetriedFuture(Future[Any]):
    """The future of the reply to a retried request; the request is its driver."""

    __slots__ = ()

    def _withdraw(self) -> None:
        request = self._driver
        if isinstance(request, RetriedCall):
            request.withdraw()


class RetriedCall:
    """One request, from its first try to its end; a thread that waits for its future drives it."""

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
        # The lock of `desk` guards the fields below.
        self._message = message
        self._reply: Reply | None = reply
        self._peer: Peer | None = None
        self._tried = 0
        self._due: float | None = 0.0  # the time of the next try; None during a try
        self._driver: Driver | None = None
        self._stopped = False

    def stop(self) -> None:
        """Retry no more: the caller does not want the reply."""
        self.withdraw()
        with self._desk.changed:
            open_ = self._reply is not None
        if open_:
            self._cancel()
        self.end(CallCancelled("it is not sent again"))

    def withdraw(self) -> None:
        """Send nothing more of it: its arguments may change. The caller must also call `stop`."""
        with self._desk.changed:
            self._stopped = True
            carrier, call = self._driver, self._message.call
        if isinstance(carrier, Carrier):
            carrier.give_up(call)

    # Trying.

    def again(self, tried: int) -> None:
        """Make the next try after `tried` tries, unless another thread has begun it."""
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
        except BaseException:  # such as an interrupt: how much was sent is unknown
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
        if now >= at:  # the thread that makes the try was delayed
            raise TimeoutError
        if tried > 1 and at != NEVER:
            message = replace(message, budget_ms=max(1, int((at - now) * 1000)))
        self._peer = peer = self._find()
        self._desk.tell_first(peer)
        until = at if try_s is None else min(at, now + try_s)
        return self._desk.sender.post(peer, message, partial(self._hear, tried), until)

    def _hear(self, tried: int, answer: Message | Exception) -> None:
        """Handle the outcome of a try; a reply counts even if its try was given up."""
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
        # After the first try nothing has been sent: report Overloaded. After a later one the
        # request may have run: retry.
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
            self.end(failure)  # the callee's own error is the most precise one
            return
        if isinstance(failure, TimeoutError):  # a peer that sends nothing may well be alive
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
        """Complete the request, if it is open."""
        desk = self._desk
        with desk.changed:
            reply, self._reply = self._reply, None
            if reply is None:
                return
            call, once = self._message.call, self._message.once
            self._driver = None
            # A scheduled task may still refer to this object: drop the large message.
            self._message = Message(self._message.kind, call, once=once)
            desk.over(self._to, call)
            desk.changed.notify_all()
        if once and self._peer is not None and self._peer.lost is None:
            size = answer.size() if isinstance(answer, Message) else 0
            desk.acknowledge(self._peer, call, size)
        reply(answer)

    # For threads that wait.

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Read the reply and make the next tries, until `done()` or the deadline."""
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
        """Wait until another thread has handled the end of a try whose driver has returned."""
        with self._desk.changed:
            if self._driver is driver:
                self._desk.changed.wait(deadline.sooner(TICK_S).remaining())
