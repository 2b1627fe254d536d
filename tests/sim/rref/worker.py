"""One worker of the simulation of remote references: what its user does, and how its messages go.

The machine under test, and a shell as thin as can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.rref.protocol import ControlMessage, Freed, Outcome, References
from holdfast.rpc.wire.messages import Kind
from holdfast.rpc.wire.tickets import Number, Ticket
from holdfast.testing.faultplan import Fault
from tests.sim.rref.judge import Handle

if TYPE_CHECKING:
    from tests.sim.rref.sim import RRefSim

__all__ = ["BEG", "Frame", "Worker"]

_GIFT = Kind.PYTHON_CALL
BEG = Kind.SCRIPT_CALL
"""Asks for a reference, which the answer brings. A call that runs once."""

ANSWER_S = 0.5
"""How long a worker waits for an answer before it tries again."""
RETRY = RetryPolicy(max_retries=5, delay_s=0.1, backoff=1.5)


class Frame(NamedTuple):
    """A message on its way: a request, or the answer to one."""

    source: str
    target: str
    call: int
    kind: Kind
    body: Any


Heard = Callable[[Any], None]
"""Hears the answer to a request, or None if there is none in time."""


class Worker:
    """One life of a worker."""

    def __init__(self, sim: RRefSim, me: str) -> None:
        self.sim = sim
        self.me = me
        self.alive = True
        self.paused_until = 0.0
        self.references = References(me, sim.plan.remembered)
        self.values: set[Number] = set()
        self.handles: list[Handle] = []
        self.unsent = 0
        self.strangers = frozenset(sim.left)
        """Workers that were gone before this one came: it never hears of them."""
        self._calls: dict[int, Heard] = {}
        self._call = 0

    # What its user does.

    def act(self) -> None:
        """Do something, and plan what comes next."""
        sim, rng = self.sim, self.sim.rng
        if not self.alive or sim.dropping:
            return
        sim.later(self, rng.expovariate(1.0 / sim.plan.every_s), self.act)
        what = rng.random()
        if what < 0.2 or not self.handles:
            self._make(rng.choice(sim.known_to(self)))
        elif what < 0.5:
            self._give(rng.choice(self.handles), rng.choice(sim.known_to(self)))
        elif what < 0.6:
            self._beg(rng.choice(sim.known_to(self)))
        elif what < 0.75:
            self._fetch(rng.choice(self.handles))
        else:
            self.drop(rng.choice(self.handles))

    def drop(self, handle: Handle) -> None:
        """Let a reference go."""
        self.handles.remove(handle)
        if handle.fork is None:
            self.perform(self.references.release(handle.reference))
        else:
            self.perform(self.references.drop(handle.fork))

    def _make(self, owner: str) -> None:
        sim = self.sim
        sim.judge.counts["values"] += 1
        if owner == self.me and sim.rng.random() < 0.5:
            reference = self.references.own()
            self.values.add(reference)
            self.handles.append(Handle(reference, owner, None))
            return
        ticket = self.references.ask(owner)
        self.handles.append(Handle(ticket.reference, owner, ticket.fork))
        sim.judge.made(ticket)
        body = (ticket.reference, ticket.fork)
        # Sent once; whatever comes of it, it may be deleted from then on.
        self.request(
            owner,
            Kind.PYTHON_REMOTE_CALL,
            body,
            lambda _: self.perform(self.references.confirmed(ticket.fork)),
        )

    def _give(self, handle: Handle, to: str) -> None:
        sim = self.sim
        ticket = self._ticket(handle, to)
        if ticket is None:
            return  # lost
        if sim.strikes(Fault.RESET):
            self.perform(self.references.not_given(ticket))
        elif handle.fork is not None and sim.targeted_crash(self):
            sim.sim.call_later(sim.rng.random(), sim.send, Frame(self.me, to, 0, _GIFT, ticket))
        else:

            def heard(_: object) -> None:
                self.perform(self.references.taken_by(to, [ticket]))

            self._call_once(to, _GIFT, ticket, [ticket], heard)

    def _beg(self, of: str) -> None:
        """Ask a worker for a reference: the answer brings it."""

        def heard(tickets: list[Ticket]) -> None:
            for ticket in tickets:
                self._take(ticket)

        self._call_once(of, BEG, None, [], heard)

    def _call_once(
        self, to: str, kind: Kind, body: Any, gives: list[Ticket], answered: Heard
    ) -> None:
        """Call a worker as users do; if no answer comes, see to what was given (RR-2)."""

        def heard(answer: Any) -> None:
            if answer is not None:
                answered(answer)
            else:
                self.insist(to, Kind.RREF_UNREAD, (call, gives), self._drop_all)

        call = self.request(to, kind, body, heard)

    def _drop_all(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            self.perform(self.references.come_to_nothing(ticket))

    def _ticket(self, handle: Handle, to: str) -> Ticket | None:
        references = self.references
        if handle.fork is None:
            ticket = references.give_own(handle.reference, to)
        else:
            ticket = references.give(handle.fork, to)
        if ticket is not None:
            self.sim.judge.given(ticket, self.me, handle)
        return ticket

    def _fetch(self, handle: Handle) -> None:
        sim = self.sim
        if handle.fork is None:
            sim.judge.found(self, handle, self._look(handle.reference))
            return
        if self.references.lost(handle.fork) is not None:
            return

        def heard(answer: Any) -> None:
            if answer is not None and handle in self.handles:
                sim.judge.found(self, handle, answer)

        self.request(handle.owner, Kind.PYTHON_RREF_FETCH_CALL, handle.reference, heard)

    def _look(self, reference: Number) -> str:
        if reference in self.values:
            return "here"
        if self.references.was_freed(reference):
            return "freed"
        return "missing" if self.sim.judge.was_created(reference) else "not yet"

    # What the machine wants.

    def perform(self, outcomes: Iterable[Outcome]) -> None:
        """Do what the machine decided, and let the judge look."""
        for outcome in outcomes:
            match outcome:
                case Freed(reference):
                    self.sim.judge.freed(self, reference, reference in self.values)
                    self.values.discard(reference)
                case ControlMessage(kind, to, reference, fork):
                    self.insist(to, kind, (reference, fork), partial(self._sent, outcome))
        self.sim.judge.check(self)

    def _sent(self, sent: ControlMessage, answer: Any) -> None:
        references = self.references
        match sent.kind:
            case Kind.RREF_FORK_REQUEST if answer:
                self.perform(references.confirmed(sent.fork))
            case Kind.RREF_FORK_REQUEST:
                self.sim.judge.refused(self, sent)
                self.perform(references.refused(sent.fork))
            case Kind.RREF_USER_DELETE:
                self.perform(references.deleted(sent.fork))
            case _:
                pass

    def died(self, worker: str) -> None:
        """Hear that another one is gone."""
        if self.alive:
            self.sim.sim.note(self.me, "hears of the end of", worker)
            self.perform(self.references.died(worker))

    # Messages.

    def insist(self, to: str, kind: Kind, body: Any, answered: Heard, tried: int = 1) -> None:
        """Send a request until it is answered or the receiver is gone."""
        if tried == 1:
            self.unsent += 1

        def heard(answer: Any) -> None:
            if answer is not None:
                self.unsent -= 1
                answered(answer)
            elif self.references.is_dead(to):
                self.unsent -= 1
            elif tried > RETRY.max_retries and not self.sim.is_known(to):
                self.unsent -= 1
                self.died(to)
            else:
                delay = RETRY.unbounded_delay(tried)
                self.sim.later(self, delay, self.insist, to, kind, body, answered, tried + 1)

        self.request(to, kind, body, heard)

    def request(self, to: str, kind: Kind, body: Any, heard: Heard) -> int:
        """Send a request once; return its number."""
        self._call += 1
        call = self._call
        self._calls[call] = heard
        self.sim.send(Frame(self.me, to, call, kind, body))
        self.sim.later(self, ANSWER_S, self._hear, call, None)
        return call

    def receive(self, frame: Frame) -> None:
        """Take a message."""
        self.sim.sim.note(self.me, "gets", frame.kind.name, frame.body, "from", frame.source)
        if frame.kind is Kind.REPLY:
            self._hear(frame.call, frame.body)
        elif not self.references.is_dead(frame.source) and frame.source not in self.strangers:
            # Else a stale incarnation.
            answer = self._answer(frame)
            self.sim.send(Frame(self.me, frame.source, frame.call, Kind.REPLY, answer))

    def _hear(self, call: int, answer: Any) -> None:
        heard = self._calls.pop(call, None)
        if heard is not None:
            heard(answer)

    def _answer(self, frame: Frame) -> Any:
        references = self.references
        match frame.kind:
            case Kind.PYTHON_CALL:  # a gift
                self._take(frame.body, in_request=True)
                return True
            case Kind.SCRIPT_CALL:
                return self._beggared(frame)
            case Kind.RREF_UNREAD:
                call, tickets = frame.body
                self._drop_all(tickets)
                return references.unread(frame.source, call)
            case Kind.PYTHON_RREF_FETCH_CALL:
                return self._look(frame.body)
            case _:
                reference, fork = frame.body
        match frame.kind:
            case Kind.PYTHON_REMOTE_CALL:
                outcomes, first = references.created(reference, fork, frame.source)
                if first:
                    self.values.add(reference)
                    self.sim.judge.created(reference)
                self.perform(outcomes)
            case Kind.RREF_FORK_REQUEST:
                counted = references.fork_requested(reference, fork, frame.source)
                self.perform([])
                return counted
            case Kind.RREF_CHILD_ACCEPT:
                self.perform(references.child_accepted(fork))
            case _:
                self.perform(references.user_deleted(reference, fork))
        return True

    def _beggared(self, frame: Frame) -> list[Ticket]:
        """Give a reference that is at hand to a worker that asks for one."""
        if not self.handles:
            return []
        ticket = self._ticket(self.sim.rng.choice(self.handles), frame.source)
        if ticket is None:
            return []  # lost
        if self.references.answered(frame.source, frame.call, [ticket]):
            return [ticket]
        self.sim.judge.counts["too_late"] += 1
        self.perform(self.references.not_given(ticket))
        return []

    def _take(self, ticket: Ticket, in_request: bool = False) -> None:
        fork = None if ticket.owner == self.me else ticket.fork
        handle = Handle(ticket.reference, ticket.owner, fork)
        freed = fork is None and self.references.was_freed(ticket.reference)
        self.perform(self.references.take(ticket, in_request))
        if not freed:
            self.handles.append(handle)
            self.sim.judge.counts["taken"] += 1
            if self.sim.dropping:
                self.drop(handle)
