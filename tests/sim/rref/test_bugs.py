"""The simulation of remote references is worth something: it finds bugs planted in the machine.

Each bug changes one decision of `rref/protocol.py`, as a careless edit might; its name says what is
wrong then, its comment which guarantee (RR) that breaks. A bug must be found within its number of
seeds, by the promise that it breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.rpc.rref import protocol, reply_references
from holdfast.rpc.rref.protocol import ControlMessage, Fork, ForkState, Freed, Outcome, References
from holdfast.rpc.wire.messages import Kind
from holdfast.rpc.wire.tickets import Number, Ticket
from tests.sim.planted import PlantedBugs
from tests.sim.rref.plan import draw_plan
from tests.sim.rref.sim import run_seed

BUGS = PlantedBugs(run_seed, draw_plan, may_raise=True)
bug = BUGS.bug


def instead(patch: pytest.MonkeyPatch, name: str, act: Callable[..., Any]) -> None:
    """Let `act(real, self, ...)` run instead of a method of the machine."""
    real = getattr(References, name)
    patch.setattr(References, name, lambda self, *args: act(real, self, *args))


# What is deleted stays deleted.


@bug("L1", 100)
def nothing_is_remembered_of_the_deleted(patch: pytest.MonkeyPatch) -> None:  # RR-2, RR-3
    patch.setattr(reply_references.RecentKeys, "__contains__", lambda self, key: False)


@bug("L1", 100)
def a_delete_before_the_creation_is_forgotten(patch: pytest.MonkeyPatch) -> None:  # RR-3
    def forget(real: Any, self: References, reference: Number, fork: Number) -> list[Outcome]:
        return real(self, reference, fork) if reference in self._owned else []

    instead(patch, "_forget_fork", forget)


@bug("S1", 100)
def a_freed_value_is_made_again(patch: pytest.MonkeyPatch) -> None:  # RR-6
    def created(real: Any, self: References, reference: Number, *more: Any) -> Any:
        self._freed._known.pop(reference, None)
        return real(self, reference, *more)

    instead(patch, "created", created)


@bug("S", 100)
def a_delayed_gift_revives_a_fork(patch: pytest.MonkeyPatch) -> None:  # RR-3
    def take(real: Any, self: References, ticket: Ticket, *how: Any) -> Any:
        if ticket.owner != self._me:
            self._deleted._known.pop(ticket.fork, None)
        return real(self, ticket, *how)

    instead(patch, "take", take)


# Children and parents.


@bug("S", 60)
def a_parent_deletes_before_its_child_is_accepted(patch: pytest.MonkeyPatch) -> None:  # RR-5
    def give(real: Any, self: References, fork: Number, to: str) -> Ticket | None:
        ticket: Ticket | None = real(self, fork, to)
        if ticket is not None and self._parents.pop(ticket.fork, None) is not None:
            del self._held[fork].children[ticket.fork]
        return ticket

    instead(patch, "give", give)


@bug("S3", 100)
def a_child_is_accepted_before_it_is_confirmed(patch: pytest.MonkeyPatch) -> None:  # RR-5
    def take(real: Any, self: References, ticket: Ticket, *how: Any) -> list[Outcome]:
        outcomes: list[Outcome] = real(self, ticket, *how)
        if any(
            isinstance(one, ControlMessage) and one.kind is Kind.RREF_FORK_REQUEST
            for one in outcomes
        ):
            outcomes += self._accept(ticket)
        return outcomes

    instead(patch, "take", take)


@bug("S", 100)
def a_fork_is_deleted_while_its_children_wait(patch: pytest.MonkeyPatch) -> None:  # RR-5
    def delete(real: Any, self: References, fork: Number) -> list[Outcome]:
        held = self._held[fork]
        for child in held.children if not held.holders else ():
            self._parents.pop(child)
        if not held.holders:
            held.children.clear()
        outcomes: list[Outcome] = real(self, fork)
        return outcomes

    instead(patch, "_delete_if_idle", delete)


@bug("L1", 20)
def a_gift_to_the_owner_is_not_accepted(patch: pytest.MonkeyPatch) -> None:  # RR-2
    def take(real: Any, self: References, ticket: Ticket, *how: Any) -> list[Outcome]:
        outcomes: list[Outcome] = real(self, ticket, *how)
        return [] if ticket.owner == self._me else outcomes

    instead(patch, "take", take)


@bug("L1", 20)
def an_answer_accepts_nothing(patch: pytest.MonkeyPatch) -> None:  # RR-2
    instead(patch, "taken_by", lambda real, self, worker, tickets: [])


@bug("S", 60)
def an_answer_accepts_what_the_callee_does_not_own(patch: pytest.MonkeyPatch) -> None:  # RR-5
    def taken(real: Any, self: References, worker: str, tickets: list[Ticket]) -> list[Outcome]:
        return [one for ticket in tickets for one in self._child_ended(ticket.fork)]

    instead(patch, "taken_by", taken)


@bug("L1", 60)
def a_gift_of_the_owner_to_itself_is_counted_for_ever(patch: pytest.MonkeyPatch) -> None:  # RR-2
    def take(real: Any, self: References, ticket: Ticket, *how: Any) -> list[Outcome]:
        if ticket.owner == self._me and not ticket.parent:
            self.hold(ticket.reference)
            return []
        outcomes: list[Outcome] = real(self, ticket, *how)
        return outcomes

    instead(patch, "take", take)


@bug("L1", 100)
def a_gift_that_was_not_sent_is_not_taken_back(patch: pytest.MonkeyPatch) -> None:  # RR-2
    instead(patch, "not_given", lambda real, self, ticket: [])


@bug("L1", 100)
def a_refused_child_does_not_free_its_parent(patch: pytest.MonkeyPatch) -> None:  # RR-2
    def refused(real: Any, self: References, fork: Number) -> list[Outcome]:
        real(self, fork)
        return []

    def requested(real: Any, self: References, *args: Any) -> Any:
        return real(self, *args) and args[1].serial % 5 != 0

    instead(patch, "refused", refused)
    instead(patch, "fork_requested", requested)


# Calls that ended without their answers.


@bug("L1", 60)
def what_an_unread_answer_gave_is_forgotten(patch: pytest.MonkeyPatch) -> None:  # RR-2, RA-1
    instead(patch, "unread", lambda real, self, *args: real(self, *args) and [])


@bug("L1", 200)
def an_answer_that_comes_too_late_gives_all_the_same(patch: pytest.MonkeyPatch) -> None:  # RA-2
    instead(patch, "answered", lambda real, self, *args: real(self, *args) or True)


@bug("L1", 60)
def what_was_given_without_an_answer_is_not_dropped(patch: pytest.MonkeyPatch) -> None:  # RR-2
    instead(patch, "come_to_nothing", lambda real, self, ticket: [])


@bug("L1", 60)
def what_comes_to_nothing_is_taken_and_kept(patch: pytest.MonkeyPatch) -> None:  # RR-2
    instead(patch, "come_to_nothing", lambda real, self, ticket: self.take(ticket))


# Counting.


@bug("S1", 20)
def the_owner_frees_although_it_holds(patch: pytest.MonkeyPatch) -> None:  # RR-1
    def free(real: Any, self: References, reference: Number) -> list[Outcome]:
        self._owned[reference].holds = 0
        outcomes: list[Outcome] = real(self, reference)
        return outcomes

    instead(patch, "_free_if_unused", free)


@bug("S1", 20)
def the_owner_frees_although_others_hold(patch: pytest.MonkeyPatch) -> None:  # RR-1
    def free(real: Any, self: References, reference: Number) -> list[Outcome]:
        if not self._owned[reference].holds:
            self._owned[reference].forks.clear()
        outcomes: list[Outcome] = real(self, reference)
        return outcomes

    instead(patch, "_free_if_unused", free)


@bug("L1", 60)
def a_fork_request_is_counted_twice(patch: pytest.MonkeyPatch) -> None:  # RR-3
    def requested(real: Any, self: References, reference: Number, fork: Number, user: str) -> Any:
        owned = self._owned.get(reference)
        if owned is not None and fork in owned.forks:
            owned.forks[self._next()] = user
        return real(self, reference, fork, user)

    instead(patch, "fork_requested", requested)


@bug("S4", 60)
def a_ticket_that_comes_twice_is_dropped_once(patch: pytest.MonkeyPatch) -> None:  # RR-1, RR-3
    def take(real: Any, self: References, ticket: Ticket, *how: Any) -> list[Outcome]:
        return [] if ticket.fork in self._held else real(self, ticket, *how)

    instead(patch, "take", take)


@bug("S1", 100)
def a_hold_before_the_creation_is_not_counted(patch: pytest.MonkeyPatch) -> None:  # RR-1
    def hold(real: Any, self: References, reference: Number) -> bool:
        return reference in self._owned and real(self, reference)

    instead(patch, "hold", hold)


@bug("L1", 100)
def what_waits_for_a_creation_waits_for_ever(patch: pytest.MonkeyPatch) -> None:  # RR-2
    def free(real: Any, self: References, reference: Number) -> list[Outcome]:
        outcomes: list[Outcome] = real(self, reference) if self._owned[reference].created else []
        return outcomes

    instead(patch, "_free_if_unused", free)


@bug("S4", 100)
def a_value_that_never_came_counts_as_freed(patch: pytest.MonkeyPatch) -> None:  # RR-1
    def free(real: Any, self: References, reference: Number) -> list[Outcome]:
        outcomes: list[Outcome] = real(self, reference)
        if Freed(reference) in outcomes:
            self._freed.add(reference)
        return outcomes

    def created(real: Any, self: References, reference: Number, fork: Number, user: str) -> Any:
        outcomes, first = real(self, reference, fork, user)
        if reference in self._freed and reference not in self._owned and not first:
            self._owned.setdefault(reference, protocol._Owned())
        return outcomes, first

    instead(patch, "_free_if_unused", free)
    instead(patch, "created", created)


# Death.


@bug("L1", 40)
def the_death_of_a_user_is_ignored(patch: pytest.MonkeyPatch) -> None:  # RR-2
    def died(real: Any, self: References, worker: str) -> list[Outcome]:
        kept = {one: dict(owned.forks) for one, owned in self._owned.items()}
        outcomes: list[Outcome] = real(self, worker)
        for reference, owned in self._owned.items():
            owned.forks.update(kept[reference])
        return outcomes

    instead(patch, "died", died)


@bug("L1", 60)
def children_on_their_way_to_the_dead_are_waited_for(patch: pytest.MonkeyPatch) -> None:  # RR-2
    def died(real: Any, self: References, worker: str) -> list[Outcome]:
        hidden: list[tuple[Fork, dict[Number, str]]] = []
        for held in self._held.values():
            hidden.append((held, held.children))
            held.children = {}
        outcomes: list[Outcome] = real(self, worker)
        for held, children in hidden:
            if held.state is not ForkState.LOST:
                held.children = children
        return outcomes

    instead(patch, "died", died)


@bug("L1", 60)
def the_death_of_an_owner_is_ignored(patch: pytest.MonkeyPatch) -> None:  # RR-5
    def died(real: Any, self: References, worker: str) -> list[Outcome]:
        kept = {fork: held for fork, held in self._held.items() if held.ticket.owner == worker}
        for fork in kept:
            del self._held[fork]
        outcomes: list[Outcome] = real(self, worker)
        self._held.update(kept)
        return outcomes

    instead(patch, "died", died)


@bug("S4", 100)
def the_dead_are_counted_when_they_ask_late(patch: pytest.MonkeyPatch) -> None:  # RR-2
    def created(real: Any, self: References, reference: Number, fork: Number, user: str) -> Any:
        outcomes = real(self, reference, fork, user)
        if user in self._dead and reference in self._owned:
            self._owned[reference].forks[fork] = user
        return outcomes

    instead(patch, "created", created)
    # The shell refuses a stale incarnation too; here it is as careless.
    patch.setattr(References, "is_dead", lambda self, worker: False)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS.check(name, monkeypatch)
