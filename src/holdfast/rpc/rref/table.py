"""The references of one agent: their values, their messages, and the protocol that counts them.

This is the shell around `rref/protocol.py`. One lock guards each step of the protocol and the
removal of the values that the step frees. Each message of the protocol is retried (see
`client/retrying.py`) until it has a reply or its receiver is gone: first with the delays of the
retry policy, then, after a warning, with the last delay without limit. A receiver that the
directory no longer knows by then counts as gone.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from holdfast.clock import Deadline
from holdfast.errors import PeerLost, ReferenceFailed, UsageError
from holdfast.rpc.client.calls import timed_out
from holdfast.rpc.client.future import Future
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.rref.dropped import Dropped, DroppedReferences
from holdfast.rpc.rref.protocol import ControlMessage, ForkState, Outcome, References
from holdfast.rpc.rref.rref import CallingAgent, RRef, make_rref, short
from holdfast.rpc.rref.until_gone import UntilGone
from holdfast.rpc.values.errors import anew
from holdfast.rpc.values.pickling import dump, load
from holdfast.rpc.values.references import here
from holdfast.rpc.wire.messages import RETRYABLE, Buffer, Kind, Message
from holdfast.rpc.wire.tickets import Number, Ticket
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["RRefTable"]

LEAKS_SHOWN = 10
OVERTAKEN_S = 60.0
"""How long, at most, a fetch waits for the request for its value that it has overtaken."""

_log = logging.getLogger("holdfast.rpc")


class RRefTable:
    """The references of one agent."""

    def __init__(
        self,
        agent: CallingAgent,
        me: WorkerInfo,
        incarnation: str,
        scheduler: Scheduler,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._agent = weakref.ref(agent)
        self.me = me
        self.incarnation = incarnation
        self._scheduler = scheduler
        self._retry = retry or RetryPolicy()
        # Guards what follows.
        self._lock = threading.Lock()
        self._references = References(incarnation)
        self._values: dict[Number, Future[Any]] = {}
        self._unsent = 0
        self._unread: dict[str, dict[int, list[Any]]] = {}  # by callee, while UNREAD is sent
        self._changed = threading.Condition(self._lock)
        self._dropped = DroppedReferences(scheduler, self._drop, self.send)

    @property
    def agent(self) -> CallingAgent:
        """The agent; PeerLost if it is gone, since serving threads do not keep it alive."""
        agent = self._agent()
        if agent is None:
            raise PeerLost("Connection closed by peer (this agent has been shut down)")
        return agent

    # Owning.

    def own(self, value: Any) -> Number:
        """Store a value of this worker, with one hold; return its number."""
        future: Future[Any] = Future()
        future.set_result(value)
        with self._lock:
            number = self._references.own()
            self._values[number] = future
        return number

    def create(self, reference: Number, fork: Number, user: str) -> Future[Any] | None:
        """Make the future of a requested value; None if the request arrived before."""
        with self._lock:
            outcomes, first = self._references.created(reference, fork, user)
            # The future exists already if a fetch has overtaken this request.
            room = self._values.setdefault(reference, Future()) if first else None
            freed = self._take_out(outcomes)
        self._perform(outcomes, freed)
        return room

    def value(self, reference: Number) -> Future[Any]:
        """Return the future of a value of this worker; ReferenceFailed if it is gone.

        A fetch may overtake the request that creates the value; then it waits for that request.
        """
        with self._lock:
            if reference in self._values:
                return self._values[reference]
            if not self._references.hold(reference):
                raise ReferenceFailed("the value of this RRef has been freed by its owner")
            room = self._values.setdefault(reference, Future())
        to_drop = iter([reference])  # once, by whichever comes first

        def drop(_: object = None) -> None:
            for number in to_drop:
                self.dropped(number, None)

        room.add_done_callback(drop)
        self._scheduler.submit(drop, OVERTAKEN_S)
        return room

    # Using.

    def ask(self, owner: str) -> Ticket:
        """Make a reference to a value that is about to be requested."""
        with self._lock:
            return self._references.ask(owner)

    def creation_ended(self, fork: Number) -> None:
        """Record that the creation has ended, with or without a reply: the fork may be deleted."""
        self._step(lambda references: references.confirmed(fork))

    def is_confirmed(self, fork: Number) -> bool:
        """Say whether the owner is known to count a fork."""
        with self._lock:
            return self._references.state_of(fork) is ForkState.CONFIRMED

    def is_held(self, fork: Number) -> bool:
        """Say whether we still hold a reference."""
        with self._lock:
            return self._references.state_of(fork) is not None

    def fetch(
        self,
        reference: Number,
        owner: WorkerInfo,
        incarnation: str,
        fork: Number | None,
        timeout: float | None,
        kind: Kind = Kind.PYTHON_RREF_FETCH_CALL,
    ) -> Any:
        """Return the value of a reference, from this worker or from its owner."""
        if incarnation == self.incarnation:
            return self._wait_for(self.value(reference), timeout)
        if fork is not None:
            with self._lock:
                lost = self._references.lost(fork)
            if lost is not None:
                raise ReferenceFailed(f"an RRef to a value at {owner} is useless: {lost}")
        return self.agent.request(incarnation, kind, tuple(reference), timeout).wait()

    def _wait_for(self, room: Future[Any], timeout: float | None) -> Any:
        """Wait for a value of this worker, at most as long as a call from here would."""
        if not room.done():
            _, budget_ms, whose = self.agent.deadline(timeout)
            room.wait_until(Deadline.after(budget_ms / 1000 or None))
            if not room.done():
                raise timed_out(budget_ms, whose)
        error = room.exception()
        if error is None:
            return room.value()
        # A copy: the original would keep the caller's frame and its reference, and so itself.
        raise anew(error, str(self.me))

    def dropped(self, reference: Number, fork: Number | None) -> None:
        """Record that a reference was dropped. Safe to call from within the garbage collector."""
        self._dropped.drop(reference, fork)

    def _drop(self, dropped: list[Dropped]) -> None:
        def drop_all(references: References) -> list[Outcome]:
            outcomes: list[Outcome] = []
            for reference, fork in dropped:
                outcomes += references.release(reference) if fork is None else references.drop(fork)
            return outcomes

        self._step(drop_all)

    # Passing on.

    def pack(
        self, to: str, value: Any, is_answer: bool = False
    ) -> tuple[bytes, Sequence[Buffer], Sequence[Ticket]]:
        """Pickle a value for a worker; return it, and the tickets of its references.

        For values that are not plain (`dump_plain`).
        """
        tickets: list[Ticket] = []
        outer = here.packing
        here.packing = (self, to, tickets, is_answer)
        try:
            body, buffers = dump(value)
        except BaseException:
            self.not_given(tickets)
            raise
        finally:
            here.packing = outer
        return body, buffers, tickets

    def unpack(self, body: Buffer, buffers: Sequence[Buffer], is_answer: bool = False) -> Any:
        """Unpickle the value of a request or an answer that has arrived, with its references."""
        outer = here.unpacking
        here.unpacking = (self, is_answer)
        try:
            return load(body, buffers)
        finally:
            here.unpacking = outer

    def give(self, reference: Number, fork: Number | None, to: str) -> Ticket | None:
        """Make the ticket that gives a reference to another worker."""
        with self._lock:
            if fork is None:
                return self._references.give_own(reference, to)
            return self._references.give(fork, to)

    def not_given(self, tickets: Iterable[Ticket]) -> None:
        """Take back tickets whose message was not sent."""
        for ticket in tickets:
            self._step(partial(References.not_given, ticket=ticket))

    def take(self, ticket: Ticket, owner: WorkerInfo, is_answer: bool) -> RRef[Any]:
        """Make the reference of a ticket that has arrived in a request, or in an answer."""
        self._step(lambda references: references.take(ticket, not is_answer))
        fork = None if ticket.owner == self.incarnation else ticket.fork
        return make_rref(self, ticket.reference, owner, ticket.owner, fork)

    def taken_by(self, callee: str, request: Message) -> None:
        """Record that a request has been answered: its callee has what it owns of that."""
        self._step(lambda references: references.taken_by(callee, request.given))

    # Calls that ended without a reply (see *unread* in `rref/protocol.py`).

    def answered(self, caller: str, call: int, tickets: Sequence[Ticket]) -> None:
        """Record the references in a reply; ReferenceFailed if no caller waits for it."""
        with self._lock:
            wanted = self._references.answered(caller, call, list(tickets))
        if not wanted:
            self.not_given(tickets)
            raise ReferenceFailed("no call waits for the references in this answer any more")

    def unread(self, callee: str, request: Message) -> None:
        """Record that no reply to a request was read; send UNREAD to the callee soon."""
        if request.kind in RETRYABLE:
            return  # these carry no references
        with self._lock:
            if self._references.is_dead(callee):
                return
            calls = self._unread.get(callee)
            if calls is None:
                calls = self._unread[callee] = {}
                self._unsent += 1
                self._scheduler.submit(partial(self._send_unread, callee))
            calls[request.call] = [tuple(ticket) for ticket in request.given]

    def _send_unread(self, callee: str) -> None:
        """Send UNREAD for the calls gathered so far, then for the rest. Scheduler's thread."""
        with self._lock:
            calls = self._unread.pop(callee, None)
            if calls:
                self._unread[callee] = {}
        if not calls:
            self._one_less()
            return

        def on_answer(answer: Future[Any]) -> None:
            if answer.exception() is not None:  # the receiver is gone
                with self._lock:
                    self._unread.pop(callee, None)
                self._one_less()
                return
            self._come_to_nothing(answer.value())
            self._scheduler.submit(partial(self._send_unread, callee))

        self._send_retried(Kind.RREF_UNREAD, callee, calls, on_answer)

    def unread_by(self, caller: str, calls: dict[int, list[Any]]) -> list[Any]:
        """Drop references of calls that ended without a reply; return those in the replies."""
        found: list[Any] = []
        for call, given in calls.items():
            self._come_to_nothing(given)
            with self._lock:
                found += map(tuple, self._references.unread(caller, call))
        return found

    def _come_to_nothing(self, given: Iterable[Any]) -> None:
        for reference, owner, fork, parent in given:
            ticket = Ticket(Number(*reference), owner, Number(*fork), parent)
            self._step(partial(References.come_to_nothing, ticket=ticket))

    # Incoming messages.

    def handle(self, kind: Kind, reference: Number, fork: Number, user: str) -> bool:
        """Handle a message of the protocol; return the reply."""
        match kind:
            case Kind.RREF_FORK_REQUEST:
                with self._lock:
                    return self._references.fork_requested(reference, fork, user)
            case Kind.RREF_CHILD_ACCEPT:
                self._step(lambda references: references.child_accepted(fork))
            case Kind.RREF_USER_DELETE:
                self._step(lambda references: references.user_deleted(reference, fork))
            case _:
                raise UsageError(f"{kind.name} is not about references")
        return True

    def died(self, worker: str) -> None:
        """Record that an incarnation is gone."""
        self._step(lambda references: references.died(worker))

    # Outcomes of protocol steps.

    def _step(self, step: Callable[[References], list[Outcome]]) -> None:
        with self._lock:
            outcomes = step(self._references)
            freed = self._take_out(outcomes)
            self._changed.notify_all()
        self._perform(outcomes, freed)

    def _take_out(self, outcomes: Iterable[Outcome]) -> list[Future[Any]]:
        """Remove freed values before another thread finds them; count the messages to send."""
        freed: list[Future[Any]] = []
        for outcome in outcomes:
            if isinstance(outcome, ControlMessage):
                self._unsent += 1
            elif outcome.reference in self._values:
                freed.append(self._values.pop(outcome.reference))
        return freed

    def _perform(self, outcomes: Iterable[Outcome], freed: list[Future[Any]]) -> None:
        for outcome in outcomes:
            if not isinstance(outcome, ControlMessage):
                continue
            if outcome.kind is Kind.RREF_USER_DELETE:
                self._dropped.delete(outcome)
            else:
                self._scheduler.submit(partial(self.send, [outcome]))
        freed.clear()  # here, without the lock: destructors run the user's code

    def send(self, messages: list[ControlMessage]) -> None:
        """Retry messages of one kind to one worker until they have a reply. Scheduler's thread."""

        def on_answer(answer: Future[Any]) -> None:
            for message in messages:
                if answer.exception() is None:
                    self._arrived(message, bool(answer.value()))
                else:  # the receiver is gone, or this agent is
                    self._one_less()

        pairs = [(tuple(message.reference), tuple(message.fork)) for message in messages]
        self._send_retried(messages[0].kind, messages[0].to, pairs, on_answer)

    def _send_retried(
        self, kind: Kind, to: str, value: Any, on_answer: Callable[[Future[Any]], None]
    ) -> None:
        try:
            answer = self.agent.request(to, kind, value, 0, UntilGone(self, kind, to))
        except PeerLost as error:
            answer = Future()
            answer.set_exception(error)
        answer.add_done_callback(on_answer)

    def delay(self, kind: Kind, worker: str, tried: int) -> float | None:
        """Return the delay before the next retry of a message; None if its receiver is gone."""
        retry, agent = self._retry, self._agent()
        with self._lock:
            if agent is None or self._references.is_dead(worker):
                return None
        if tried > retry.max_retries and not agent.knows(worker):
            self.died(worker)
            return None
        if tried == retry.max_retries + 1:
            _log.warning("%s to %s: %s", kind.name, worker, retry.exhausted())
        return retry.unbounded_delay(tried)

    def _arrived(self, message: ControlMessage, useful: bool) -> None:
        fork = message.fork
        match message.kind:
            case Kind.RREF_FORK_REQUEST if useful:
                self._step(lambda references: references.confirmed(fork))
            case Kind.RREF_FORK_REQUEST:
                self._step(lambda references: references.refused(fork))
            case Kind.RREF_USER_DELETE:
                self._step(lambda references: references.deleted(fork))
            case _:
                pass  # the receiver needs nothing more
        self._one_less()

    def _one_less(self) -> None:
        with self._changed:
            self._unsent -= 1
            self._changed.notify_all()

    # Diagnostics, and shutdown.

    def counts(self) -> dict[str, int]:
        """Return counts by name; `pending_futures` are values that are being created."""
        return {**self._reference_counts(), "pending_futures": self.open_values}

    def _reference_counts(self) -> dict[str, int]:
        with self._lock:
            return self._references.counts()

    @property
    def shared_values(self) -> int:
        """How many values of this worker are held by other workers."""
        with self._lock:
            return len(self._references.users())

    @property
    def open_values(self) -> int:
        """How many values are still being created here."""
        with self._lock:
            return sum(not value.done() for value in self._values.values())

    def leaks(self) -> list[str]:
        """Describe the values of this worker that other workers still hold."""
        with self._lock:
            users = self._references.users()
        return [
            f"a value that lives here ({short(number)}) is still held by "
            + ", ".join(sorted(map(self.agent.worker_name, workers)))
            for number, workers in users.items()
        ]

    def release_all(self) -> None:
        """Drop all references of this worker."""
        self._step(References.release_all)

    def part(self, timeout: Callable[[], float | None]) -> list[str]:
        """Drop all references, since this agent ends; describe those that other workers still hold.

        Waits for the other workers until `timeout`. It logs what is left: those references will be
        lost at their holders.
        """
        self.release_all()
        self._wait(lambda: self._references.is_empty() and not self._unsent, timeout)
        leaks = self.leaks()
        for leak in leaks[:LEAKS_SHOWN]:
            _log.warning("shutdown of %s: %s", self.me, leak)
        if len(leaks) > LEAKS_SHOWN:
            _log.warning("shutdown of %s: and %d more", self.me, len(leaks) - LEAKS_SHOWN)
        return leaks

    def wait_answered(self, timeout: Callable[[], float | None]) -> bool:
        """Wait until all messages of the protocol have arrived; False if time is up."""
        return self._wait(lambda: not self._unsent, timeout)

    def wait_confirmed(self, forks: Iterable[Number], timeout: Callable[[], float | None]) -> bool:
        """Wait until the owners have replied about these references; False if time is up."""
        state_of = self._references.state_of
        waited = [*forks]
        return self._wait(
            lambda: all(state_of(fork) is not ForkState.ASKED for fork in waited), timeout
        )

    def wait_empty(self, timeout: Callable[[], float | None]) -> bool:
        """Wait until no reference is left here, owned or used; False if time is up."""
        return self._wait(self._references.is_empty, timeout)

    def _wait(self, reached: Callable[[], bool], timeout: Callable[[], float | None]) -> bool:
        with self._changed:
            while not reached():
                left = timeout()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
        return True
