"""The references of an agent at work: values, messages, and the machine that counts.

The shell around `rref/protocol.py`. The machine is stepped under one lock, and what it frees is
taken out under the same one. What it wants sent is sent again and again (see `client/retrying.py`)
until it is answered or the receiver is gone: first after the delays of the retry policy, then, with
a warning, after the last of them for as long as it takes. Somebody whom nobody knows any more by
then is gone.
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
from holdfast.rpc.client.deadlines import timed_out
from holdfast.rpc.client.future import Future
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.rref.protocol import ControlMessage, ForkState, Outcome, References
from holdfast.rpc.rref.rref import RRef, short
from holdfast.rpc.values.errors import anew
from holdfast.rpc.values.pickling import dump, dump_plain, load
from holdfast.rpc.values.references import here
from holdfast.rpc.wire.messages import RETRYABLE, Buffer, Kind, Message
from holdfast.rpc.wire.tickets import Number, Ticket
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["RRefTable"]

CONTROL_TRY_S = 10.0
LEAKS_SHOWN = 10
OVERTAKEN_S = 60.0
"""How long a fetch that has overtaken the request for its value waits for that, at most."""
NO_REFERENCE_BYTES = 64
"""What is shorter has no reference within: one alone takes more."""

_log = logging.getLogger("holdfast.rpc")


class RRefTable:
    """The references of one agent."""

    def __init__(
        self,
        agent: Any,
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
        self._unread: dict[str, dict[int, list[Any]]] = {}  # by callee; there while it is told
        self._settled = threading.Condition(self._lock)

    @property
    def agent(self) -> Any:
        """The agent, which must still be there: those who serve others do not keep it."""
        agent = self._agent()
        if agent is None:
            raise PeerLost("Connection closed by peer (this agent has been shut down)")
        return agent

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
            outcomes, first = self._references.created(reference, fork, user)
            # There is room already if a fetch has overtaken this request.
            room = self._values.setdefault(reference, Future()) if first else None
            freed = self._take_out(outcomes)
        self._perform(outcomes, freed)
        return room

    def value(self, reference: Number) -> Future[Any]:
        """Return the future of a value of this worker; ReferenceFailed if it is gone.

        A fetch may overtake the request that creates the value: it waits for that.
        """
        with self._lock:
            if reference in self._values:
                return self._values[reference]
            if not self._references.hold(reference):
                raise ReferenceFailed("the value of this RRef has been freed by its owner")
            room = self._values.setdefault(reference, Future())
        let_go = _once(lambda: self.dropped(reference, None))
        room.add_done_callback(lambda _: let_go())
        self._scheduler.submit(let_go, OVERTAKEN_S)
        return room

    # Using.

    def ask(self, owner: str) -> Ticket:
        """Make a reference to a value that is about to be asked for."""
        with self._lock:
            return self._references.ask(owner)

    def settled(self, fork: Number) -> None:
        """Hear that the creation was answered, or will never be: it may be deleted from now on."""
        self._step(lambda references: references.confirmed(fork))

    def is_confirmed(self, fork: Number) -> bool:
        """Say whether the owner is known to count a fork."""
        with self._lock:
            return self._references.state_of(fork) is ForkState.CONFIRMED

    def is_held(self, fork: Number) -> bool:
        """Say whether a reference of ours has not been given up."""
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
        """Return the value of a reference, from wherever it is."""
        if incarnation == self.incarnation:
            return self._wait_for(self.value(reference), timeout)
        if fork is not None:
            with self._lock:
                lost = self._references.lost(fork)
            if lost is not None:
                raise ReferenceFailed(f"an RRef to a value at {owner} is useless: {lost}")
        return self.agent.request(incarnation, kind, reference, timeout).wait()

    def _wait_for(self, room: Future[Any], timeout: float | None) -> Any:
        """Wait for a value of this worker as long as a call would that is made here."""
        if not room.done():
            _, budget_ms, whose = self.agent._deadline(timeout)
            room._wait(Deadline.after(budget_ms / 1000 or None))
            if not room.done():
                raise timed_out(budget_ms, whose)
        error = room.exception()
        if error is None:
            return room.value()
        # Not that one: it would keep whoever asked, with his reference, and so itself for ever.
        raise anew(error, str(self.me))

    def dropped(self, reference: Number, fork: Number | None) -> None:
        """Hear that a reference of this worker was dropped. Safe within the garbage collector."""
        self._scheduler.submit(lambda: self._drop(reference, fork))

    def _drop(self, reference: Number, fork: Number | None) -> None:
        if fork is None:
            self._step(lambda references: references.let_go(reference))
        else:
            self._step(lambda references: references.drop(fork))

    # Passing on.

    def pack(
        self, to: str, value: Any, is_answer: bool = False
    ) -> tuple[bytes, Sequence[Buffer], Sequence[Ticket]]:
        """Dump what goes to a worker; return it, and the tickets of the references within."""
        plain = dump_plain(value)
        if plain is not None:
            return plain, (), ()
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

    def unpack(self, body: Buffer, buffers: Sequence[Buffer]) -> Any:
        """Load what has come, with the references within."""
        if len(body) < NO_REFERENCE_BYTES:
            return load(body, buffers)
        outer = here.unpacking
        here.unpacking = self
        try:
            return load(body, buffers)
        finally:
            here.unpacking = outer

    def give(self, reference: Number, fork: Number | None, to: str) -> Ticket | None:
        """Make the ticket by which another worker gets a reference."""
        with self._lock:
            if fork is None:
                return self._references.give_own(reference, to)
            return self._references.give(fork, to)

    def not_given(self, tickets: Iterable[Ticket]) -> None:
        """Take tickets back whose message was not sent."""
        for ticket in tickets:
            self._step(partial(References.not_given, ticket=ticket))

    def take(self, ticket: Ticket, owner: WorkerInfo) -> RRef[Any]:
        """Make the reference of a ticket that has come."""
        self._step(lambda references: references.take(ticket))
        fork = None if ticket.owner == self.incarnation else ticket.fork
        return RRef._made(self, ticket.reference, owner, ticket.owner, fork)

    # Calls that ended without their answers (see *unread* in `rref/protocol.py`).

    def answered(self, caller: str, call: int, tickets: Sequence[Ticket]) -> None:
        """Note what an answer gives; ReferenceFailed if nobody waits for it any more."""
        with self._lock:
            wanted = self._references.answered(caller, call, list(tickets))
        if not wanted:
            self.not_given(tickets)
            raise ReferenceFailed("nobody waits for the references in this answer any more")

    def unread(self, callee: str, request: Message) -> None:
        """Hear that a request ended without an answer that was read: tell its callee, soon."""
        if request.kind in RETRYABLE:
            return  # these give nothing
        with self._lock:
            if self._references.is_dead(callee):
                return
            calls = self._unread.get(callee)
            if calls is None:
                calls = self._unread[callee] = {}
                self._unsent += 1
                self._scheduler.submit(partial(self._tell_unread, callee))
            calls[request.call] = [tuple(ticket) for ticket in request.given]

    def _tell_unread(self, callee: str) -> None:
        """Tell what has gathered so far, then the rest. On the scheduler's thread."""
        with self._lock:
            calls = self._unread.pop(callee, None)
            if calls:
                self._unread[callee] = {}
        if not calls:
            self._one_less()
            return

        def heard(answer: Future[Any]) -> None:
            if answer.exception() is not None:  # there is nobody to be told any more
                with self._lock:
                    self._unread.pop(callee, None)
                self._one_less()
                return
            self._come_to_nothing(answer.value())
            self._scheduler.submit(partial(self._tell_unread, callee))

        self._insist(Kind.RREF_UNREAD, callee, calls, heard)

    def unread_by(self, caller: str, calls: dict[int, list[Any]]) -> list[Any]:
        """Hear what calls gave that ended without their answers; return what those gave."""
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

    # Messages that have come.

    def handle(self, kind: Kind, reference: Number, fork: Number, user: str) -> bool:
        """Handle a message about counting; return what is answered."""
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
        """Hear that an incarnation is gone."""
        self._step(lambda references: references.died(worker))

    # What the machine wants.

    def _step(self, step: Callable[[References], list[Outcome]]) -> None:
        with self._lock:
            outcomes = step(self._references)
            freed = self._take_out(outcomes)
            self._settled.notify_all()
        self._perform(outcomes, freed)

    def _take_out(self, outcomes: Iterable[Outcome]) -> list[Future[Any]]:
        """Take out what is freed, before anybody else can find it, and count what is to be sent."""
        freed: list[Future[Any]] = []
        for outcome in outcomes:
            if isinstance(outcome, ControlMessage):
                self._unsent += 1
            elif outcome.reference in self._values:
                freed.append(self._values.pop(outcome.reference))
        return freed

    def _perform(self, outcomes: Iterable[Outcome], freed: list[Future[Any]]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, ControlMessage):
                self._scheduler.submit(partial(self.send, outcome))
        freed.clear()  # here, without the lock: their destructors are the user's code

    def send(self, message: ControlMessage) -> None:
        """Send a control message until it is answered. On the scheduler's thread."""

        def heard(answer: Future[Any]) -> None:
            if answer.exception() is None:
                self._arrived(message, bool(answer.value()))
            else:  # there is nobody to tell any more, or nobody who tells
                self._one_less()

        self._insist(message.kind, message.to, (message.reference, message.fork), heard)

    def _insist(
        self, kind: Kind, to: str, value: Any, heard: Callable[[Future[Any]], None]
    ) -> None:
        try:
            answer = self.agent.request(to, kind, value, 0, _UntilGone(self, kind, to))
        except PeerLost as error:
            answer = Future()
            answer.set_exception(error)
        answer.add_done_callback(heard)

    def delay(self, kind: Kind, worker: str, tried: int) -> float | None:
        """Return how long to wait before a message is sent again; None if its receiver is gone."""
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
                pass  # the other side has what it needs
        self._one_less()

    def _one_less(self) -> None:
        with self._settled:
            self._unsent -= 1
            self._settled.notify_all()

    # For people, and for the end.

    def counts(self) -> dict[str, int]:
        """Return how many there are of what; `pending_futures` are values that are being made."""
        return {**self._reference_counts(), "pending_futures": self.open_values}

    def _reference_counts(self) -> dict[str, int]:
        with self._lock:
            return self._references.counts()

    @property
    def shared_values(self) -> int:
        """How many values of this worker others hold."""
        with self._lock:
            return len(self._references.users())

    @property
    def open_values(self) -> int:
        """How many values are still being created here."""
        with self._lock:
            return sum(not value.done() for value in self._values.values())

    def leaks(self) -> list[str]:
        """Return, in words, which values of this worker others hold still."""
        with self._lock:
            users = self._references.users()
        return [
            f"a value that lives here ({short(number)}) is still held by "
            + ", ".join(sorted(map(self.agent.worker_name, workers)))
            for number, workers in users.items()
        ]

    def release_all(self) -> None:
        """Give up all references of this worker."""
        self._step(References.release_all)

    def part(self, timeout: Callable[[], float | None]) -> list[str]:
        """Give up all references, since this agent ends; return what others have not given up.

        Waits for them so long. What is left is logged: whoever holds it will find it gone.
        """
        self.release_all()
        self._wait(lambda: self._references.is_empty() and not self._unsent, timeout)
        leaks = self.leaks()
        for leak in leaks[:LEAKS_SHOWN]:
            _log.warning("shutdown of %s: %s", self.me, leak)
        if len(leaks) > LEAKS_SHOWN:
            _log.warning("shutdown of %s: and %d more", self.me, len(leaks) - LEAKS_SHOWN)
        return leaks

    def wait_settled(self, timeout: Callable[[], float | None]) -> bool:
        """Wait until everything that was to be told has arrived; False if time is up."""
        return self._wait(lambda: not self._unsent, timeout)

    def wait_confirmed(self, forks: Iterable[Number], timeout: Callable[[], float | None]) -> bool:
        """Wait until owners have answered for these references of ours; False if time is up."""
        state_of = self._references.state_of
        waited = [*forks]
        return self._wait(
            lambda: all(state_of(fork) is not ForkState.ASKED for fork in waited), timeout
        )

    def wait_empty(self, timeout: Callable[[], float | None]) -> bool:
        """Wait until no reference is left here, owned or used; False if time is up."""
        return self._wait(self._references.is_empty, timeout)

    def _wait(self, reached: Callable[[], bool], timeout: Callable[[], float | None]) -> bool:
        with self._settled:
            while not reached():
                left = timeout()
                if left is not None and left <= 0:
                    return False
                self._settled.wait(left)
        return True


class _UntilGone:
    """Lets a message about counting be sent until its receiver is gone."""

    try_s = CONTROL_TRY_S

    def __init__(self, rrefs: RRefTable, kind: Kind, to: str) -> None:
        self._rrefs = rrefs
        self._kind = kind
        self._to = to

    def delay(self, tried: int) -> float | None:
        return self._rrefs.delay(self._kind, self._to, tried)

    def exhausted(self) -> str:
        return "Its receiver is gone."


def _once(act: Callable[[], None]) -> Callable[[], None]:
    """Return what does something the first time, and then nothing."""
    left = [act]

    def once() -> None:
        try:
            first = left.pop()
        except IndexError:
            return
        first()

    return once
