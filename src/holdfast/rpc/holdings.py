"""The references of an agent at work: values, messages, and the machine that counts.

The shell around `rref_protocol.py`. The machine is stepped under one lock; what it wants sent is
sent by the errands' thread, again and again by the retry policy, until it is acknowledged or the
receiver is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Self

from holdfast.errors import ReferenceFailed, UsageError
from holdfast.rpc.errands import Errands
from holdfast.rpc.future import Future
from holdfast.rpc.messages import Kind
from holdfast.rpc.names import WorkerInfo
from holdfast.rpc.passing import here
from holdfast.rpc.retry import RetryPolicy
from holdfast.rpc.rref import RRef
from holdfast.rpc.rref_protocol import (
    ForkState,
    Freed,
    Lost,
    Number,
    Outcome,
    References,
    Send,
    Ticket,
)

__all__ = ["Holdings", "Packing", "Unpacking"]

CONTROL_TIMEOUT_S = 10.0


class Packing:
    """Packs references into one message to one worker, and takes them back if it is not sent."""

    def __init__(self, holdings: Holdings, to: str) -> None:
        self._holdings = holdings
        self._to = to
        self.tickets: list[Ticket] = []

    def __enter__(self) -> Self:
        here.packing = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        here.packing = None
        if kind is not None:
            self.undo()

    def give(self, reference: Number, owner: WorkerInfo, fork: Number | None) -> Ticket:
        """Make the ticket for a reference in the message."""
        ticket = self._holdings.give(reference, fork, self._to)
        if ticket is None:
            raise ReferenceFailed(f"a reference to a value at {owner} that is gone")
        self.tickets.append(ticket)
        return ticket

    def undo(self) -> None:
        """Take back what was packed: the message was not sent."""
        self._holdings.not_given(self.tickets)


class Unpacking:
    """Unpacks references of a message that has come."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def __enter__(self) -> Self:
        here.unpacking = self
        return self

    def __exit__(self, *_: object) -> None:
        here.unpacking = None

    def take(self, ticket: Ticket, owner: WorkerInfo) -> RRef[Any]:
        """Return the reference of a ticket."""
        return self._holdings.take(ticket, owner)


class Holdings:
    """The references of one agent."""

    def __init__(
        self,
        agent: Any,
        me: WorkerInfo,
        incarnation: str,
        errands: Errands,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.agent = agent
        self.me = me
        self._errands = errands
        self._retry = retry or RetryPolicy()
        # Guards what follows.
        self._lock = threading.Lock()
        self._references = References(incarnation)
        self._values: dict[Number, Future[Any]] = {}
        self._begun: set[Number] = set()  # whose creation has been asked for
        self._lost: dict[Number, str] = {}
        self._unsent = 0
        self._settled = threading.Condition(self._lock)

    # Owning.

    def own(self, value: Any) -> Number:
        """Keep a value of this worker, with one hold; return its number."""
        future: Future[Any] = Future()
        future.set_result(value)
        with self._lock:
            number = self._references.own()
            self._values[number] = future
        return number

    def create(self, reference: Number, fork: Number, user: str) -> Future[Any] | None:
        """Make room for a value that a user asked for; None if the request was here before."""
        with self._lock:
            known = reference in self._begun or self._references.was_freed(reference)
            self._begun.add(reference)
            # It is there already if a fetch has overtaken this request.
            future = self._values.setdefault(reference, Future())
            outcomes = self._references.created(reference, fork, user)
        self._perform(outcomes)
        return None if known else future

    def value(self, reference: Number) -> Future[Any]:
        """Return the future of a value of this worker; ReferenceFailed if it is gone.

        A fetch may overtake the request that creates the value: it waits for that.
        """
        with self._lock:
            if reference in self._values:
                return self._values[reference]
            if self._references.was_freed(reference):
                raise ReferenceFailed("the value of this RRef has been freed by its owner")
            return self._values.setdefault(reference, Future())

    # Using.

    def ask(self, owner: str) -> Ticket:
        """Make a reference to a value that is about to be asked for."""
        with self._lock:
            return self._references.ask(owner)

    def settled(self, fork: Number) -> None:
        """Hear that the creation was answered, or will never be: it may be deleted from now on."""
        with self._lock:
            outcomes = self._references.confirmed(fork)
        self._perform(outcomes)

    def is_confirmed(self, fork: Number) -> bool:
        """Say whether the owner is known to count a fork."""
        with self._lock:
            return self._references.state_of(fork) is ForkState.CONFIRMED

    def fetch(
        self, reference: Number, owner: WorkerInfo, fork: Number | None, timeout: float | None
    ) -> Any:
        """Return the value of a reference, from wherever it is."""
        if fork is None:
            return self.value(reference).wait(timeout)
        with self._lock:
            lost = self._lost.get(fork)
        if lost is not None:
            raise ReferenceFailed(f"an RRef to a value at {owner} is useless: {lost}")
        return self.agent.fetch(owner, reference, timeout)

    def dropped(self, reference: Number, fork: Number | None) -> None:
        """Hear that a reference of this worker was dropped. Safe within the garbage collector."""
        self._errands.do(lambda: self._drop(reference, fork))

    def _drop(self, reference: Number, fork: Number | None) -> None:
        with self._lock:
            if fork is None:
                outcomes = self._references.let_go(reference)
            else:
                self._lost.pop(fork, None)
                outcomes = self._references.drop(fork)
        self._perform(outcomes)

    # Passing on.

    def give(self, reference: Number, fork: Number | None, to: str) -> Ticket | None:
        """Make the ticket by which another worker gets a reference."""
        with self._lock:
            if fork is None:
                return self._references.give_own(reference, to)
            return self._references.give(fork, to)

    def not_given(self, tickets: Iterable[Ticket]) -> None:
        """Take tickets back whose message was not sent."""
        for ticket in tickets:
            with self._lock:
                outcomes = self._references.not_given(ticket)
            self._perform(outcomes)

    def take(self, ticket: Ticket, owner: WorkerInfo) -> RRef[Any]:
        """Make the reference of a ticket that has come."""
        with self._lock:
            outcomes = self._references.take(ticket)
        self._perform(outcomes)
        own = owner == self.me
        return RRef._made(self, ticket.reference, owner, None if own else ticket.fork)

    # Messages that have come.

    def handle(self, kind: Kind, reference: Number, fork: Number, user: str) -> bool:
        """Handle a message about counting; return what is answered."""
        useful = True
        with self._lock:
            match kind:
                case Kind.RREF_FORK_REQUEST:
                    outcomes, useful = self._references.fork_requested(reference, fork, user)
                case Kind.RREF_CHILD_ACCEPT:
                    outcomes = self._references.child_accepted(fork)
                case Kind.RREF_USER_DELETE:
                    outcomes = self._references.user_deleted(reference, fork)
                case _:
                    raise UsageError(f"{kind.name} is not about references")
        self._perform(outcomes)
        return useful

    def died(self, worker: str) -> None:
        """Hear that an incarnation is gone."""
        with self._lock:
            outcomes = self._references.died(worker)
        self._perform(outcomes)

    # What the machine wants.

    def _perform(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Send():
                    with self._lock:
                        self._unsent += 1
                    self._errands.do(_send(self, outcome))
                case Freed(reference):
                    with self._lock:
                        freed = self._values.pop(reference, None)
                        self._begun.discard(reference)
                    del freed  # here, without the lock: its destructor is the user's code
                case Lost(fork, reason):
                    with self._lock:
                        self._lost[fork] = reason

    def send(self, message: Send, tried: int = 1) -> None:
        """Send a message about counting, and see to it that it arrives. On the errands' thread."""

        def heard(answer: Future[Any]) -> None:
            error = answer.exception()
            if error is None:
                self._arrived(message, bool(answer.value()))
                return
            delay = self._retry.delay(tried)
            if delay is None:
                self._given_up(message)
            else:
                self._errands.do(lambda: self.send(message, tried + 1), delay)

        try:
            answer = self.agent.request(
                message.to, message.kind, (message.reference, message.fork), CONTROL_TIMEOUT_S
            )
        except Exception as error:
            answer = Future()
            answer.set_exception(error)
        answer.add_done_callback(heard)

    def _arrived(self, message: Send, useful: bool) -> None:
        with self._lock:
            match message.kind:
                case Kind.RREF_FORK_REQUEST if useful:
                    outcomes = self._references.confirmed(message.fork)
                case Kind.RREF_FORK_REQUEST:
                    outcomes = self._references.refused(message.fork)
                case Kind.RREF_USER_DELETE:
                    outcomes = self._references.deleted(message.fork)
                case _:
                    outcomes = []
        self._perform(outcomes)
        self._one_less()

    def _given_up(self, message: Send) -> None:
        """Let go of what could not be told: its lease tells that the other one is gone."""
        if message.kind is Kind.RREF_USER_DELETE:
            with self._lock:
                self._references.deleted(message.fork)
        self._one_less()

    def _one_less(self) -> None:
        with self._settled:
            self._unsent -= 1
            self._settled.notify_all()

    # For people, and for the end.

    def counts(self) -> dict[str, int]:
        """Return how many there are of what."""
        with self._lock:
            return self._references.counts()

    def wait_settled(self, timeout: Callable[[], float | None]) -> bool:
        """Wait until everything that was to be told has arrived; False if time is up."""
        with self._settled:
            while self._unsent:
                left = timeout()
                if left is not None and left <= 0:
                    return False
                self._settled.wait(left)
        return True


def _send(holdings: Holdings, message: Send) -> Callable[[], None]:
    return lambda: holdings.send(message)
