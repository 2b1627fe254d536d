"""Counting remote references: it decides when the owner of a value may let it go.

Rule 1: everything that decides how long a value lives is in this file.
Rule 2: this file sends nothing and reads no clock. Every method returns what is to be sent; the
    shell sends it again and again until it is answered, and then tells the answer, or until the
    receiver is known to be gone (`died`).

A value lives at its *owner*. Others hold it through *forks*: numbered claims, each of one worker.
The owner keeps the set of forks that it knows, and its own local holds. When both are empty, the
value is freed.

    creating        A asks B to make a value, and names the reference and its own fork at once. B
                    counts the fork when the request arrives, however late that is. Forks and holds
                    may be counted before that; they wait for it.
    from a user     A gives its reference to C: A makes a fork for C, and holds on to its own as
                    long as the child is not accepted. C asks the owner to count the child
                    (FORK_REQUEST); when that is acknowledged, C tells A (CHILD_ACCEPT).
    from the owner  B gives it to C: B counts the child before it is sent.
    to the owner    A gives it back to B: B holds it locally, and accepts the child itself.
    dropping        A drops its reference: when its own fork is confirmed and no child waits, it
                    tells the owner (USER_DELETE).
    unread          A call of A at B ends at A without its answer: A gave up, or a connection broke.
                    Nobody knows whether what it gave was taken, and what its answer gave. So A
                    gives it again, to be dropped, and names the call (UNREAD); B says what the
                    answer gave, for A to take and drop. If it is yet to come, it gives nothing.
    dying           The forks of a worker that is gone are dropped by the owner; children on their
                    way to it no longer hold anybody back; references that it owned are lost.

Every message may come twice, late, or not at all before it is sent again. What is deleted stays
deleted: the owner remembers the numbers of the newest deleted forks and freed values, so that a
request that was overtaken by its own end brings nothing back.

Guarantees
    RR-1  A value is not freed while a fork that the owner has confirmed is held by a worker that
          lives, as far as the owner knows.
    RR-2  When all references are dropped, or their holders gone, and all messages have arrived, the
          value is freed, and nothing of it is left on any worker. What was given must have been
          taken, taken back (`not_given`), given to somebody who is gone, or asked for (`unread`).
    RR-3  Every message may be handled any number of times, at any time: after the first nothing
          changes. A ticket may be taken any number of times: each is one more holder of the fork.
    RR-4  What is remembered of the deleted is bounded: the newest `REMEMBERED_MAX` of each kind. A
          message that is older than those may count a fork that nobody holds, until its worker is
          gone; it never frees a value.
    RR-5  A reference whose owner is gone, or whose value was freed before its fork was counted, is
          lost, and stays so: its holders can ask why (`lost`). The latter happens only when the
          worker that gave it, or one before that, is gone, or has heard that the owner is: an
          owner whose lease is over may still answer for a while.
    RR-6  A value is to be made once, by the first request for it (`created`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from holdfast.rpc.rref.reply_references import RecentKeys, ReplyReferences
from holdfast.rpc.wire.messages import Kind
from holdfast.rpc.wire.tickets import Number, Ticket, Worker

__all__ = [
    "REMEMBERED_MAX",
    "ControlMessage",
    "Fork",
    "ForkState",
    "Freed",
    "Outcome",
    "References",
]

REMEMBERED_MAX = 65536

OWNER_GONE = "its owner is gone"
VALUE_GONE = "its value was freed before this reference was counted"
DROPPED = "it was dropped here before it came again"


class ControlMessage(NamedTuple):
    """Send this until it is answered, or until `to` is gone."""

    kind: Kind
    to: Worker
    reference: Number
    fork: Number


class Freed(NamedTuple):
    """The owner lets the value go; or stops waiting for it, if nobody has asked for it yet."""

    reference: Number


Outcome: TypeAlias = ControlMessage | Freed


class ForkState(StrEnum):
    """What the owner is known to know of a fork."""

    ASKED = "asked"
    """It may not have heard of it."""
    CONFIRMED = "confirmed"
    DELETING = "deleting"
    """It is told to forget it: too late for whoever gets the same ticket again."""
    LOST = "lost"
    """It knows nothing of it, or is gone."""


_USELESS = frozenset({ForkState.DELETING, ForkState.LOST})


@dataclass(slots=True)
class Fork:
    """A fork that this worker holds."""

    ticket: Ticket
    state: ForkState
    holders: int = 1
    """How many of this worker's references stand on it: more than one if its ticket came again."""
    children: dict[Number, Worker] = field(default_factory=dict)
    """Forks that were given to others and are not accepted yet, and to whom."""
    why: str = ""
    """Why it is lost, if it is."""


@dataclass(slots=True)
class _Owned:
    """A value of this worker, as its counters see it."""

    forks: dict[Number, Worker] = field(default_factory=dict)
    created: bool = False
    holds: int = 0


class References:
    """The references of one worker: those that it owns, and those that it uses."""

    def __init__(self, me: Worker, remembered: int = REMEMBERED_MAX) -> None:
        self._me = me
        self._serial = 0
        self._owned: dict[Number, _Owned] = {}
        self._held: dict[Number, Fork] = {}
        self._parents: dict[Number, Number] = {}  # child that waits → our fork that it came from
        self._deleted = RecentKeys(remembered)
        self._freed = RecentKeys(remembered)
        self._dead = RecentKeys(remembered)
        self._answers = ReplyReferences(remembered)

    # Making references.

    def own(self) -> Number:
        """Make a reference to a value of our own, which is there, and hold it once."""
        number = self._next()
        self._owned[number] = _Owned(created=True, holds=1)
        return number

    def ask(self, owner: Worker) -> Ticket:
        """Make a reference to a value that a worker is asked to create."""
        ticket = Ticket(self._next(), owner, self._next(), "")
        self._held[ticket.fork] = Fork(ticket, ForkState.ASKED)
        if owner in self._dead:
            self._lose(ticket.fork, OWNER_GONE)
        return ticket

    def created(self, reference: Number, fork: Number, user: Worker) -> tuple[list[Outcome], bool]:
        """Hear, as the owner, that a value is asked for; count who asks.

        The flag says whether the value is to be made now: it is not when the request was here
        before (RR-6). It is made even if nobody can want it any more, and freed at once.
        """
        if reference in self._freed:
            return [], False
        owned = self._owned.setdefault(reference, _Owned())
        first, owned.created = not owned.created, True
        if fork not in self._deleted and user not in self._dead:
            owned.forks[fork] = user
        return self._free_if_unused(reference), first

    def hold(self, reference: Number) -> bool:
        """Hold a value of our own once more; False if it has been freed.

        It need not be asked for yet: a reference to it may overtake the request.
        """
        if reference in self._freed:
            return False
        self._owned.setdefault(reference, _Owned()).holds += 1
        return True

    def let_go(self, reference: Number) -> list[Outcome]:
        """Give up a local hold of a value of our own."""
        owned = self._owned.get(reference)
        if owned is None or not owned.holds:
            return []
        owned.holds -= 1
        return self._free_if_unused(reference)

    # Giving them to others.

    def give_own(self, reference: Number, to: Worker) -> Ticket | None:
        """Give a value of our own to a worker; None if it has been freed."""
        owned = self._owned.get(reference)
        if owned is None:
            return None
        ticket = Ticket(reference, self._me, self._next(), "")
        if to not in self._dead:
            owned.forks[ticket.fork] = to
        return ticket

    def give(self, fork: Number, to: Worker) -> Ticket | None:
        """Give a reference that we hold to a worker; None if we hold it no more."""
        held = self._held.get(fork)
        if held is None or held.state in _USELESS:
            return None
        ticket = Ticket(held.ticket.reference, held.ticket.owner, self._next(), self._me)
        if to not in self._dead:
            held.children[ticket.fork] = to
            self._parents[ticket.fork] = fork
        return ticket

    def not_given(self, ticket: Ticket) -> list[Outcome]:
        """Take back what was given, since it was not sent and never will be."""
        if not ticket.parent:
            return self._forget_fork(ticket.reference, ticket.fork)
        return self._child_settled(ticket.fork)

    def take(self, ticket: Ticket) -> list[Outcome]:
        """Receive a reference from a worker. The same one may come more than once."""
        if ticket.owner == self._me:
            self.hold(ticket.reference)
            if ticket.parent:
                return self._accept(ticket)
            return self._forget_fork(ticket.reference, ticket.fork)  # we gave it to ourselves
        held = self._held.get(ticket.fork)
        if held is not None:
            held.holders += 1
            return []
        counted = not ticket.parent  # the owner gave it, and has counted it
        held = Fork(ticket, ForkState.CONFIRMED if counted else ForkState.ASKED)
        self._held[ticket.fork] = held
        if ticket.fork in self._deleted:
            self._lose(ticket.fork, DROPPED)
            return []
        if ticket.owner in self._dead:
            self._lose(ticket.fork, OWNER_GONE)
            return self._accept(ticket)
        if counted:
            return []
        return [ControlMessage(Kind.RREF_FORK_REQUEST, ticket.owner, ticket.reference, ticket.fork)]

    def drop(self, fork: Number) -> list[Outcome]:
        """Give up one holder of a fork of ours."""
        held = self._held.get(fork)
        if held is None or not held.holders:
            return []
        held.holders -= 1
        if held.state is ForkState.LOST and not held.holders:
            del self._held[fork]
            return []
        return self._delete_if_idle(fork)

    # Calls that ended without an answer.

    def answered(self, caller: Worker, call: int, tickets: list[Ticket]) -> bool:
        """Note what the answer to a call gives; False if nobody will read it: take it back then."""
        return self._answers.add(caller, call, tickets, self._is_open)

    def unread(self, caller: Worker, call: int) -> list[Ticket]:
        """Hear that the answer to a call was not read, and never will be; return what it gave."""
        return self._answers.ask(caller, call, self._is_open)

    def come_to_nothing(self, ticket: Ticket) -> list[Outcome]:
        """Take a reference that may have come before, or still come, and drop it."""
        outcomes = self.take(ticket)
        if ticket.owner == self._me:
            return [*outcomes, *self.let_go(ticket.reference)]
        return [*outcomes, *self.drop(ticket.fork)]

    def release_all(self) -> list[Outcome]:
        """Drop everything that is held here, whoever has it."""
        outcomes: list[Outcome] = []
        for fork, held in list(self._held.items()):
            held.holders = min(1, held.holders)
            outcomes += self.drop(fork)
        for reference, owned in list(self._owned.items()):
            owned.holds = min(1, owned.holds)
            outcomes += self.let_go(reference)
        return outcomes

    # Messages, as they come. Each is acknowledged by the shell when these return.

    def fork_requested(self, reference: Number, fork: Number, user: Worker) -> bool:
        """Count a fork, as the owner; False if its value or its user is gone (RR-5)."""
        if reference in self._freed or user in self._dead:
            return False
        if fork not in self._deleted:
            self._owned.setdefault(reference, _Owned()).forks[fork] = user
        return True

    def child_accepted(self, child: Number) -> list[Outcome]:
        """Hear that a fork which we gave has arrived and is counted."""
        return self._child_settled(child)

    def user_deleted(self, reference: Number, fork: Number) -> list[Outcome]:
        """Forget a fork, as the owner; also one that we have not heard of yet."""
        return self._forget_fork(reference, fork)

    # What became of what we sent.

    def confirmed(self, fork: Number) -> list[Outcome]:
        """Hear that the owner counts a fork of ours: it answered.

        For a fork of `ask` this is told however the request ended: if it arrives after all, the
        fork is counted then, unless it has been deleted first.
        """
        held = self._held.get(fork)
        if held is None or held.state is not ForkState.ASKED:
            return []
        held.state = ForkState.CONFIRMED
        return [*self._accept(held.ticket), *self._delete_if_idle(fork)]

    def refused(self, fork: Number) -> list[Outcome]:
        """Hear that the value was freed before our fork could be counted (RR-5)."""
        held = self._held.get(fork)
        if held is None or held.state is not ForkState.ASKED:
            return []
        self._lose(fork, VALUE_GONE)
        return self._accept(held.ticket)

    def deleted(self, fork: Number) -> list[Outcome]:
        """Hear that the owner has forgotten a fork of ours."""
        held = self._held.get(fork)
        if held is not None and held.state is ForkState.DELETING:
            self._lose(fork, DROPPED)
        return []

    def died(self, worker: Worker) -> list[Outcome]:
        """Hear that a worker is gone, for good."""
        self._dead.add(worker)
        outcome: list[Outcome] = []
        for reference, owned in list(self._owned.items()):
            gone = [fork for fork, user in owned.forks.items() if user == worker]
            for fork in gone:
                del owned.forks[fork]
            if gone:
                outcome += self._free_if_unused(reference)
        for fork, held in list(self._held.items()):
            if held.ticket.owner == worker:
                # The worker that gave it may never hear of this death: it waits for our word.
                outcome += self._accept(held.ticket) if held.state is ForkState.ASKED else []
                self._lose(fork, OWNER_GONE)
                continue
            for child in [child for child, user in held.children.items() if user == worker]:
                outcome += self._child_settled(child)
        return outcome

    # For the shell, for people, and for tests.

    def counts(self) -> dict[str, int]:
        """Return how many values are owned, forks known, references held, and unsettled."""
        pending = sum(held.state is ForkState.ASKED for held in self._held.values())
        return {
            "owners": len(self._owned),
            "forks": sum(len(owned.forks) for owned in self._owned.values()),
            "held": len(self._held),
            "pending_users": pending,
            "pending_children": len(self._parents),
        }

    def is_empty(self) -> bool:
        """Say whether nothing is left here, owned or used."""
        return not self._owned and not self._held

    def users(self) -> dict[Number, set[Worker]]:
        """Return who else holds a value of ours, value by value."""
        return {one: set(owned.forks.values()) for one, owned in self._owned.items() if owned.forks}

    def state_of(self, fork: Number) -> ForkState | None:
        """Return what is known of a fork of ours; None if we hold it no more."""
        held = self._held.get(fork)
        return None if held is None else held.state

    def lost(self, fork: Number) -> str | None:
        """Return why a fork of ours is of no use any more; None while it is (RR-5)."""
        held = self._held.get(fork)
        if held is None or held.state is ForkState.DELETING:
            return DROPPED
        return held.why if held.state is ForkState.LOST else None

    def was_freed(self, reference: Number) -> bool:
        """Say whether a value of ours has been freed, as far as that is remembered."""
        return reference in self._freed

    def is_dead(self, worker: Worker) -> bool:
        """Say whether a worker is known to be gone."""
        return worker in self._dead

    # How it goes on.

    def _next(self) -> Number:
        self._serial += 1
        return Number(self._me, self._serial)

    def _is_open(self, ticket: Ticket) -> bool:
        """Say whether what we gave is counted on its ticket's account still."""
        if ticket.parent:
            return ticket.fork in self._parents
        owned = self._owned.get(ticket.reference)
        return owned is not None and ticket.fork in owned.forks

    def _accept(self, ticket: Ticket) -> list[Outcome]:
        if not ticket.parent or ticket.parent in self._dead:
            return []
        return [
            ControlMessage(Kind.RREF_CHILD_ACCEPT, ticket.parent, ticket.reference, ticket.fork)
        ]

    def _child_settled(self, child: Number) -> list[Outcome]:
        fork = self._parents.pop(child, None)
        if fork is None:
            return []
        del self._held[fork].children[child]
        return self._delete_if_idle(fork)

    def _delete_if_idle(self, fork: Number) -> list[Outcome]:
        held = self._held[fork]
        if held.holders or held.children or held.state is not ForkState.CONFIRMED:
            return []
        held.state = ForkState.DELETING
        ticket = held.ticket
        return [ControlMessage(Kind.RREF_USER_DELETE, ticket.owner, ticket.reference, fork)]

    def _forget_fork(self, reference: Number, fork: Number) -> list[Outcome]:
        self._deleted.add(fork)
        owned = self._owned.get(reference)
        if owned is None:
            return []
        owned.forks.pop(fork, None)
        return self._free_if_unused(reference)

    def _free_if_unused(self, reference: Number) -> list[Outcome]:
        owned = self._owned[reference]
        if owned.forks or owned.holds:
            return []
        del self._owned[reference]
        if owned.created:  # else the request may still come
            self._freed.add(reference)
        return [Freed(reference)]

    def _lose(self, fork: Number, why: str) -> None:
        """Make a fork useless for those that hold it still, if any."""
        self._deleted.add(fork)
        held = self._held[fork]
        for child in held.children:
            del self._parents[child]
        held.children.clear()
        held.state, held.why = ForkState.LOST, why
        if not held.holders:
            del self._held[fork]
