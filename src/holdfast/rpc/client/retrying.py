"""Retries requests until a reply comes.

Users' calls (`retries=`) and messages about references share this mechanism. After a failed try, a
request waits for the delay of its policy, and is sent again under the same number. No thread
sleeps for the delay: the scheduler's thread makes the next try, or a thread that waits between two
tries of its request, whichever comes first. So a slow connection to one worker does not delay
calls to others.

Users' requests are marked `once`: the callee runs such a request once, however often it arrives
(see `server/dedup.py`), and the caller acknowledges its reply when the callee need not keep it any
longer. Messages of the RETRYABLE kinds may run twice; they are not marked. `RetryTable` has the
state, and `client/calls.py` decides what follows on a failed try: here is what performs it.

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
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import CallCancelled, HoldfastError, PeerLost
from holdfast.rpc.client.background_reader import TICK_S
from holdfast.rpc.client.calls import (
    Again,
    Backoff,
    End,
    Receiver,
    Request,
    RetryTable,
    Try,
    after_failure,
    is_failure,
)
from holdfast.rpc.client.future import Carrier, Driver, Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.pipe import Reply
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["ACK_DELAY_S", "RetriedCall", "RetriedFuture", "RetryingCalls", "note"]

ACK_DELAY_S = 0.01
"""How long an acknowledgement is delayed, so that one note can acknowledge many replies."""

_REPLY = Kind.REPLY
_log = logging.getLogger("holdfast.rpc")


class RetryingCalls:
    """The requests of one agent that are retried until a reply comes."""

    def __init__(
        self,
        me: WorkerInfo,
        numbers: Iterator[int],
        scheduler: Scheduler,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._me = me
        self._numbers = numbers
        self.scheduler = scheduler
        self.clock = clock
        # Guards the table and its requests; threads that wait between two tries are notified.
        self.changed = threading.Condition()
        self.table = RetryTable[RetriedCall]()
        self.closed = False
        """Whether nothing is sent any more."""

    def post(
        self,
        to: str,
        find: Callable[[], Peer],
        message: Message,
        reply: Reply,
        at: float,
        policy: Backoff,
    ) -> RetriedCall:
        """Send a request to an incarnation under a new number; call `reply` with the outcome.

        `find` returns the receiver, or raises PeerLost while the receiver is not known.
        """
        request = RetriedCall(self, to, find, message, reply, at, policy)
        with self.changed:
            # With the lock: a number that is not in the table may be acknowledged.
            self.table.add(request, next(self._numbers))
            closed = self.closed
        if closed:
            request.end(self._stopped())
        else:
            request.again(0)
        return request

    def lost(self, to: str, error: PeerLost) -> None:
        """Fail all requests to an incarnation that is gone."""
        with self.changed:
            requests = self.table.requests(to)
        for request in requests:
            request.end(error)

    def close(self) -> None:
        """Fail all open requests, and send nothing any more. Idempotent."""
        with self.changed:
            self.closed = True
            requests = self.table.requests()
        for request in requests:
            request.end(self._stopped())

    def _stopped(self) -> PeerLost:
        """Return the error for requests after `close`."""
        text = f"RPC Agent is no longer running on Node {self._me.id}. Cannot retry message."
        return PeerLost(text, peer=self._me.name)

    def __len__(self) -> int:
        """Return how many requests are not completed."""
        with self.changed:
            return len(self.table)

    def acknowledge(self, peer: Peer) -> None:
        """Tell the callee that it need not keep replies any longer. One note for many of them."""
        with self.changed:
            acknowledgement = self.table.acknowledge(peer.contact.incarnation)
        if acknowledgement is not None:
            note(peer, acknowledgement)


def note(peer: Peer, message: Message) -> None:
    """Send a message that has no reply; a failure is only logged."""
    try:
        peer.transmit(message)
    except (OSError, HoldfastError) as error:
        _log.debug("a note to %s was not sent: %s", peer.contact.info, error)


class RetriedFuture(Future[Any]):
    """The future of the reply to a retried request; the request is its driver."""

    __slots__ = ()

    def _withdraw(self) -> None:
        request = self._driver
        if isinstance(request, RetriedCall):
            request.withdraw()


class RetriedCall(Request):
    """One request, from its first try to its end; a thread that waits for its future drives it."""

    def __init__(
        self,
        calls: RetryingCalls,
        to: str,
        find: Callable[[], Peer],
        message: Message,
        reply: Reply,
        at: float,
        policy: Backoff,
    ) -> None:
        super().__init__(to, message, at, policy)
        self._calls = calls
        self._find = find
        # The lock of `calls` guards the fields below.
        self._reply: Reply | None = reply
        self._peer: Peer | None = None
        self._driver: Driver | None = None

    def stop(self) -> None:
        """Retry no more: the caller does not want the reply."""
        self.withdraw()
        if self.is_open:
            self._cancel()
        self.end(CallCancelled("it is not sent again"))

    def withdraw(self) -> None:
        """Send nothing more of it: its arguments may change. The caller must also call `stop`."""
        with self._calls.changed:
            self.stopped = True
            carrier, call = self._driver, self.message.call
        if isinstance(carrier, Carrier):
            carrier.give_up(call)

    # Trying.

    def again(self, tried: int) -> None:
        """Make the next try after `tried` tries, unless another thread has begun it."""
        calls = self._calls
        now = calls.clock.monotonic()
        with calls.changed:
            attempt = calls.table.begin(self, tried, now)
        if attempt is None:
            return
        tried += 1
        try:
            driver = self._send(attempt, tried, now)
        except Exception as error:
            self._try_ended(tried, error)
        except BaseException:  # such as an interrupt: how much was sent is unknown
            self._try_ended(tried, PeerLost("Connection closed by peer (sending was interrupted)"))
            raise
        else:
            with calls.changed:
                if calls.table.is_current(self, tried):
                    self._driver = driver
                    calls.changed.notify_all()

    def _send(self, attempt: Try, tried: int, now: float) -> Driver | None:
        if now >= self.at:  # the thread that makes the try was delayed
            raise TimeoutError
        self._peer = peer = self._find()
        if attempt.note is not None:
            note(peer, attempt.note)
        return peer.post(attempt.message, partial(self._try_ended, tried), attempt.until)

    def _try_ended(self, tried: int, answer: Message | Exception) -> None:
        """Handle the outcome of a try; a reply counts even if its try was given up."""
        if answer.__class__ is Message and answer.kind is _REPLY:
            self.end(answer)  # nearly always
            return
        if not is_failure(self.message, answer):
            self.end(answer)
            return
        with self._calls.changed:
            current = self._calls.table.is_current(self, tried)
        if current:
            self._failed(tried, answer)

    def _failed(self, tried: int, failure: Message | Exception) -> None:
        """Wait for the next try, or give up."""
        calls, peer = self._calls, self._peer
        why = str(failure) if isinstance(failure, Exception) else "it was refused"
        _log.debug("%s to %s: try %d failed: %s", self.message.kind.name, self.to, tried, why)
        now = calls.clock.monotonic()
        if peer is None:
            to = Receiver(self.to)
        else:
            to = Receiver(self.to, peer.contact.info.name, peer.lost)
        # Without the lock: the policy may look up whether the receiver is alive.
        match after_failure(self.message, tried, failure, self.policy, to, now, self.at):
            case End(outcome, cancel):
                if cancel:
                    self._cancel()
                self.end(outcome)
            case Again(delay):
                with calls.changed:
                    waits = calls.table.put_off(self, now + delay)
                    self._driver = None
                    calls.changed.notify_all()
                if waits:
                    calls.scheduler.submit(partial(self.again, tried), delay)
                else:
                    self.end(CallCancelled("it is not sent again"))

    # The end.

    def _cancel(self) -> None:
        if self._peer is not None:
            cancel = Message(Kind.CANCEL, self.message.call)
            self._calls.scheduler.submit(partial(note, self._peer, cancel))

    def end(self, answer: Message | Exception) -> None:
        """Complete the request, if it is open."""
        calls, peer = self._calls, self._peer
        keeps: int | None = None  # the bytes that the callee keeps until they are acknowledged
        if peer is not None and peer.lost is None and not calls.closed:
            keeps = 0
            if isinstance(answer, Message):
                keeps = answer.size() if answer.buffers else len(answer.body)
        with calls.changed:
            reply, self._reply = self._reply, None
            if reply is None:
                return
            self._driver = None
            first = calls.table.end(self, keeps)
            calls.changed.notify_all()
        if first and peer is not None:
            calls.scheduler.submit(partial(calls.acknowledge, peer), ACK_DELAY_S)
        reply(answer)

    # For threads that wait.

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Read the reply and make the next tries, until `done()` or the deadline."""
        changed, clock = self._calls.changed, self._calls.clock
        while not done():
            if deadline.at is not None and deadline.passed():
                return
            with changed:
                driver, due, tried = self._driver, self.due, self.tried
                if not self.is_open:
                    return
                if driver is None and (due is None or due > clock.monotonic()):
                    until = deadline if due is None else deadline.sooner(due - clock.monotonic())
                    changed.wait(until.remaining())
                    continue
            if driver is None:
                self.again(tried)
                continue
            driver.drive(done, deadline)
            if not done():
                with changed:  # another thread may be about to handle the end of this try
                    if self._driver is driver:
                        changed.wait(deadline.sooner(TICK_S).remaining())
