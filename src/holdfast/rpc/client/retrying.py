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
from holdfast.rpc.client.future import Carrier, Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.values.pickling import load
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["ACK_DELAY_S", "Complete", "RetriedCall", "RetryingCalls", "note"]

ACK_DELAY_S = 0.01
"""How long an acknowledgement is delayed, so that one note can acknowledge many replies."""

Complete = Callable[[Message, Future[Any], Message | Exception], object]
"""Completes the future of a request with its reply, or with the reason why none came."""

_REPLY = Kind.REPLY
_NOT_AGAIN = "it is not sent again"
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
        receiver: Peer | Callable[[], Peer],
        message: Message,
        complete: Complete,
        at: float,
        policy: Backoff,
    ) -> RetriedCall:
        """Send a request to an incarnation under a new number; `complete` completes its future.

        A function as `receiver` returns it, or raises PeerLost while it is not known.
        """
        request = RetriedCall(self, to, receiver, message, complete, at, policy)
        now = self.clock.monotonic()
        with self.changed:
            # With the lock: a number that is not in the table may be acknowledged.
            self.table.add(request, next(self._numbers))
            first = None if self.closed else self.table.begin(request, 0, now)
        if first is None:
            request.end(self._stopped())
        else:
            request.make(first, now)
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


class RetriedCall(Request, Future[Any]):
    """One request, from its first try to its end: the future of its reply.

    Its driver is what carries the try that is under way; between two tries, it is its own driver.
    """

    def __init__(
        self,
        calls: RetryingCalls,
        to: str,
        receiver: Peer | Callable[[], Peer],
        message: Message,
        complete: Complete,
        at: float,
        policy: Backoff,
    ) -> None:
        Future.__init__(self, self)
        Request.__init__(self, to, message, at, policy)
        self._calls = calls
        # The lock of `calls` guards the fields below, and `driver` while the request is open.
        self._complete_by: Complete | None = complete
        self._receiver = receiver
        self._peer: Peer | None = None

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            if self.is_open:
                self._cancel_at_receiver()
            self.end(CallCancelled(_NOT_AGAIN))
        return cancelled

    def _withdraw(self) -> None:
        with self._calls.changed:
            self.stopped = True
            carrier, call = self.driver, self.message.call
        if isinstance(carrier, Carrier):
            carrier.give_up(call)

    # Trying.

    def again(self, tried: int) -> None:
        """Make the next try after `tried` tries, unless another thread has begun it."""
        calls = self._calls
        now = calls.clock.monotonic()
        with calls.changed:
            attempt = calls.table.begin(self, tried, now)
        if attempt is not None:
            self.make(attempt, now)

    def make(self, attempt: Try, now: float) -> None:
        """Make a try that has begun at the time `now`."""
        calls, tried, carrier = self._calls, attempt.number, None
        try:
            if now >= self.at:  # the thread that makes the try was delayed
                raise TimeoutError
            receiver = self._receiver
            self._peer = peer = receiver() if callable(receiver) else receiver
            if attempt.note is not None:
                note(peer, attempt.note)
            carrier = peer.post(attempt.message, partial(self._try_ended, tried), attempt.until)
        except Exception as error:
            self._try_ended(tried, error)
        except BaseException:  # such as an interrupt: how much was sent is unknown
            self._try_ended(tried, PeerLost("Connection closed by peer (sending was interrupted)"))
            raise
        else:
            with calls.changed:
                if self.trying == tried:
                    self.driver = carrier
                    calls.changed.notify_all()
                stopped = self.stopped
            if stopped and carrier is not None:  # it was cancelled while this thread sent it
                carrier.give_up(attempt.message.call)

    def _try_ended(self, tried: int, answer: Message | Exception) -> None:
        """Handle the outcome of a try; a reply counts even if its try was given up."""
        if answer.__class__ is Message and answer.kind is _REPLY:
            self.end(answer)  # nearly always: a fast path of what follows
        elif not is_failure(self.message, answer):
            self.end(answer)
        elif self.trying == tried:
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
                    self._cancel_at_receiver()
                self.end(outcome)
            case Again(delay):
                with calls.changed:
                    if self.trying != tried:
                        return  # it was completed meanwhile
                    waits = calls.table.put_off(self, now + delay)
                    self.driver = self
                    calls.changed.notify_all()
                if waits:
                    calls.scheduler.submit(partial(self.again, tried), delay)
                else:
                    self.end(CallCancelled(_NOT_AGAIN))

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Make the next tries when they are due, until one is under way or the deadline."""
        changed, clock = self._calls.changed, self._calls.clock
        while not done() and not deadline.passed():
            with changed:
                if self.driver is not self or not self.is_open:
                    return
                tried, until = self.tried, deadline
                if not self.trying:
                    until = deadline.sooner(self.due - clock.monotonic())
                if self.trying or self.due > clock.monotonic():
                    changed.wait(until.remaining())
                    continue
            self.again(tried)

    # The end.

    def _cancel_at_receiver(self) -> None:
        if self._peer is not None:
            cancel = Message(Kind.CANCEL, self.message.call)
            self._calls.scheduler.submit(partial(note, self._peer, cancel))

    def end(self, answer: Message | Exception) -> None:
        """Complete the request, if it is open."""
        calls, peer, request = self._calls, self._peer, self.message
        keeps: int | None = None  # the bytes that the callee keeps until they are acknowledged
        if peer is not None and peer.lost is None and not calls.closed:
            keeps = 0
            if isinstance(answer, Message):
                keeps = answer.size() if answer.buffers else len(answer.body)
        with calls.changed:
            complete, self._complete_by = self._complete_by, None
            if complete is None:
                return
            self.driver = None
            first = calls.table.end(self, keeps)
            calls.changed.notify_all()
        if first and peer is not None:
            calls.scheduler.submit(partial(calls.acknowledge, peer), ACK_DELAY_S)
        if (
            isinstance(answer, Message)
            and answer.kind is _REPLY
            and not (answer.has_references or request.given)
        ):  # nearly always: a fast path of `complete`
            try:
                value = load(answer.body, answer.buffers)
            except BaseException as error:
                self.finish(None, error.with_traceback(None))
            else:
                self.finish(value, None)
        else:
            complete(request, self, answer)
