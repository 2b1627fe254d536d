"""Counts remote references: decides when the owner of a value may free it.

Rule 1: everything that decides how long a value lives is in this file.
Rule 2: this file sends nothing and reads no clock. Every method returns the messages to be sent.
    The shell retries each until it has a reply, which it reports by another method, or until the
    receiver is known to be gone (`died`).

A value lives at its *owner*. Other workers hold it through *forks*: numbered claims, each of one
worker. The owner keeps the set of forks that it knows, and its own local holds. When both are
empty, the value is freed.

    creating        A asks B to make a value, and names the reference and its own fork in the same
                    request. B counts the fork when the request arrives, however late that is. B may
                    count other forks and holds before that; they wait for the value.
    from a user     A gives its reference to C: A makes a child fork for C, and keeps its own fork
                    until the child is accepted. C asks the owner to count the child (FORK_REQUEST);
                    when that is acknowledged, C accepts the child (CHILD_ACCEPT, to A).
    from the owner  B gives the reference to C: B counts the child before it is sent.
    to the owner    A gives the reference back to B: B holds the value locally, and accepts the
                    child itself. If A gave it in a request, the answer says so (`taken_by`), and no
                    other message is needed; if A reads no answer, UNREAD makes B accept it.
    dropping        A drops its reference: when A's fork is confirmed and no child waits, A sends
                    USER_DELETE to the owner.
    unread          A call from A to B ends at A without a reply: A gave up, or a connection broke.
                    A does not know whether B took the references in the call, nor which references
                    were in the reply. So A gives the former again, to be dropped, and names the
                    call (UNREAD). B returns the references in its reply, for A to take and drop. If
                    B has not replied yet, its reply will give no reference.
    dying           The owner drops the forks of a worker that is gone; children that were sent to
                    it no longer keep their parents; references that it owned are lost.

Every message may arrive twice, late, or only after a retry. A deletion is final: the owner
remembers the numbers of the newest deleted forks and freed values, so a request that arrives after
its own deletion restores nothing.

Guarantees
    RR-1  A value is not freed while a fork that the owner has confirmed is held by a worker that
          lives, as far as the owner knows.
    RR-2  When all references are dropped, or their holders gone, and all messages have arrived, the
          value is freed, and nothing of it is left on any worker. Every reference that was given
          must have been taken, taken back (`not_given`), given to a worker that is gone, or
          reported (`unread`).
    RR-3  Every message may be handled any number of times, at any time: only the first time has an
          effect. A ticket may be taken any number of times: each adds one holder of the fork.
    RR-4  The memory of deletions is bounded: the newest `REMEMBERED_MAX` of each kind. A message
          that is older than those may count a fork that no worker holds, until its worker is gone;
          it never frees a value.
    RR-5  A reference whose owner is gone, or whose value was freed before its fork was counted, is
          lost, and stays lost: its holders can ask for the reason (`lost`). The latter happens only
          if the worker that gave it, or one before that, is gone, or was informed that the owner is
          gone: an owner whose lease has expired may still reply for a while.
    RR-6  A value is made once, by the first request for it (`created`).
"""

from __future__ import annotations

from collections.abc import Iterable
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
    """A message to be retried until it has a reply, or until `to` is gone."""

    kind: Kind
    to: Worker
    reference: Number
    fork: Number


class Freed(NamedTuple):
    """The owner frees the value, or stops waiting for it if no request for it has arrived."""

    reference: Number


Outcome: TypeAlias = ControlMessage | Freed


class ForkState(StrEnum):
    """What this worker knows of a fork's state at the owner."""

    ASKED = "asked"
    """The owner may not have counted it yet."""
    CONFIRMED = "confirmed"
    DELETING = "deleting"
    """The owner is asked to forget it; the same ticket is useless if it arrives again."""
    LOST = "lost"
    """The owner does not count it, or is gone."""


_USELESS = frozenset({ForkState.DELETING, ForkState.LOST})


@dataclass(slots=True)
class Fork:
    """A fork that this worker holds."""

    ticket: Ticket
    state: ForkState
    holders: int = 1
    """How many of this worker's references use it: more than one if its ticket came again."""
    children: dict[Number, Worker] = field(default_factory=dict)
    """Child forks that are not accepted yet, and the worker that each was given to."""
    why: str = ""
    """The reason, if it is lost."""


@dataclass(slots=True)
class _Owned:
    """The counters of a value of this worker."""

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
        self._parents: dict[Number, Number] = {}  # waiting child → our fork that it came from
        self._deleted = RecentKeys(remembered)
        self._freed = RecentKeys(remembered)
        self._dead = RecentKeys(remembered)
        self._answers = ReplyReferences(remembered)

    # Making references.

    def own(self) -> Number:
        """Make a reference to an existing value of our own, and hold it once."""
        number = self._next()
        self._owned[number] = _Owned(created=True, holds=1)
        return number

    def ask(self, owner: Worker) -> Ticket:
        """Make a reference to a value that another worker is asked to create."""
        ticket = Ticket(self._next(), owner, self._next(), "")
        self._held[ticket.fork] = Fork(ticket, ForkState.ASKED)
        if owner in self._dead:
            self._lose(ticket.fork, OWNER_GONE)
        return ticket

    def created(self, reference: Number, fork: Number, user: Worker) -> tuple[list[Outcome], bool]:
        """Handle, as the owner, a request to create a value; count the caller's fork.

        The flag says whether the value is to be made now: False if the request arrived before
        (RR-6). The value is made even if no holder is left, and freed at once.
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

        The request to create it need not have arrived: a reference may overtake that request.
        """
        if reference in self._freed:
            return False
        self._owned.setdefault(reference, _Owned()).holds += 1
        return True

    def release(self, reference: Number) -> list[Outcome]:
        """Release one local hold of a value of our own."""
        owned = self._owned.get(reference)
        if owned is None or not owned.holds:
            return []
        owned.holds -= 1
        return self._free_if_unused(reference)

    # Giving references to other workers.

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
        """Give a reference that we hold to a worker; None if we no longer hold it."""
        held = self._held.get(fork)
        if held is None or held.state in _USELESS:
            return None
        ticket = Ticket(held.ticket.reference, held.ticket.owner, self._next(), self._me)
        if to not in self._dead:
            held.children[ticket.fork] = to
            self._parents[ticket.fork] = fork
        return ticket

    def not_given(self, ticket: Ticket) -> list[Outcome]:
        """Take back a ticket that was not sent and never will be."""
        if not ticket.parent:
            return self._forget_fork(ticket.reference, ticket.fork)
        return self._child_ended(ticket.fork)

    def take(self, ticket: Ticket, in_request: bool = False) -> list[Outcome]:
        """Receive a reference from a worker. The same ticket may arrive more than once.

        `in_request` says that it came in a request, which will be answered.
        """
        if ticket.owner == self._me:
            self.hold(ticket.reference)
            if ticket.parent:
                return [] if in_request else self._accept(ticket)
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

    def taken_by(self, worker: Worker, tickets: Iterable[Ticket]) -> list[Outcome]:
        """Record that a worker has answered a request: it has what it owns of these."""
        outcomes: list[Outcome] = []
        for ticket in tickets:
            if ticket.owner == worker:
                outcomes += self._child_ended(ticket.fork)
        return outcomes

    def drop(self, fork: Number) -> list[Outcome]:
        """Remove one holder of a fork of ours."""
        held = self._held.get(fork)
        if held is None or not held.holders:
            return []
        held.holders -= 1
        if held.state is ForkState.LOST and not held.holders:
            del self._held[fork]
            return []
        return self._delete_if_idle(fork)

    # Calls that ended without a reply.

    def answered(self, caller: Worker, call: int, tickets: list[Ticket]) -> bool:
        """Record the references in a reply; False if no caller will read it: take them back."""
        return self._answers.add(caller, call, tickets, self._is_open)

    def unread(self, caller: Worker, call: int) -> list[Ticket]:
        """Record that a reply will never be read; return the references that it gave."""
        return self._answers.ask(caller, call, self._is_open)

    def come_to_nothing(self, ticket: Ticket) -> list[Outcome]:
        """Take a reference that may have arrived before, or may still arrive, and drop it."""
        outcomes = self.take(ticket)
        if ticket.owner == self._me:
            return [*outcomes, *self.release(ticket.reference)]
        return [*outcomes, *self.drop(ticket.fork)]

    def release_all(self) -> list[Outcome]:
        """Drop everything that is held here, however many holders it has."""
        outcomes: list[Outcome] = []
        for fork, held in list(self._held.items()):
            held.holders = min(1, held.holders)
            outcomes += self.drop(fork)
        for reference, owned in list(self._owned.items()):
            owned.holds = min(1, owned.holds)
            outcomes += self.release(reference)
        return outcomes

    # Incoming messages. The shell acknowledges each one when its method returns.

    def fork_requested(self, reference: Number, fork: Number, user: Worker) -> bool:
        """Count a fork, as the owner; False if its value or its user is gone (RR-5)."""
        if reference in self._freed or user in self._dead:
            return False
        if fork not in self._deleted:
            self._owned.setdefault(reference, _Owned()).forks[fork] = user
        return True

    def child_accepted(self, child: Number) -> list[Outcome]:
        """Record that a fork that we gave has arrived and is counted."""
        return self._child_ended(child)

    def user_deleted(self, reference: Number, fork: Number) -> list[Outcome]:
        """Forget a fork, as the owner, also if no message about it has arrived yet."""
        return self._forget_fork(reference, fork)

    # Outcomes of messages that we sent.

    def confirmed(self, fork: Number) -> list[Outcome]:
        """Record that the owner counts a fork of ours, since it has replied.

        For a fork of `ask` the shell calls this however the request ended: if the request still
        arrives, the owner counts the fork then, unless the fork was deleted first.
        """
        held = self._held.get(fork)
        if held is None or held.state is not ForkState.ASKED:
            return []
        held.state = ForkState.CONFIRMED
        return [*self._accept(held.ticket), *self._delete_if_idle(fork)]

    def refused(self, fork: Number) -> list[Outcome]:
        """Record that the value was freed before our fork could be counted (RR-5)."""
        held = self._held.get(fork)
        if held is None or held.state is not ForkState.ASKED:
            return []
        self._lose(fork, VALUE_GONE)
        return self._accept(held.ticket)

    def deleted(self, fork: Number) -> list[Outcome]:
        """Record that the owner has forgotten a fork of ours."""
        held = self._held.get(fork)
        if held is not None and held.state is ForkState.DELETING:
            self._lose(fork, DROPPED)
        return []

    def died(self, worker: Worker) -> list[Outcome]:
        """Record that a worker is gone, for good."""
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
                # The worker that gave it may never learn of this death: it waits for us.
                outcome += self._accept(held.ticket) if held.state is ForkState.ASKED else []
                self._lose(fork, OWNER_GONE)
                continue
            for child in [child for child, user in held.children.items() if user == worker]:
                outcome += self._child_ended(child)
        return outcome

    # For the shell, for diagnostics, and for tests.

    def counts(self) -> dict[str, int]:
        """Return the numbers of owned values, known forks, and held and pending references."""
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
        """Return the other workers that hold values of ours, by value."""
        return {one: set(owned.forks.values()) for one, owned in self._owned.items() if owned.forks}

    def state_of(self, fork: Number) -> ForkState | None:
        """Return the state of a fork of ours; None if we no longer hold it."""
        held = self._held.get(fork)
        return None if held is None else held.state

    def lost(self, fork: Number) -> str | None:
        """Return why a fork of ours is useless; None while it is useful (RR-5)."""
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

    # Internal steps.

    def _next(self) -> Number:
        self._serial += 1
        return Number(self._me, self._serial)

    def _is_open(self, ticket: Ticket) -> bool:
        """Say whether a ticket that we gave still keeps its reference alive."""
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

    def _child_ended(self, child: Number) -> list[Outcome]:
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
        if owned.created:  # else the request may still arrive
            self._freed.add(reference)
        return [Freed(reference)]

    def _lose(self, fork: Number, why: str) -> None:
        """Mark a fork as lost for its remaining holders, if any."""
        self._deleted.add(fork)
        held = self._held[fork]
        for child in held.children:
            del self._parents[child]
        held.children.clear()
        held.state, held.why = ForkState.LOST, why
        if not held.holders:
            del self._held[fork]
