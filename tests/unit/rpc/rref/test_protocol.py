"""Counting remote references: each rule by itself, and any history against a set of holders."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.rpc.rref.protocol import (
    DROPPED,
    OWNER_GONE,
    VALUE_GONE,
    ControlMessage,
    ForkState,
    Freed,
    Outcome,
    References,
)
from holdfast.rpc.wire.messages import Kind
from holdfast.rpc.wire.tickets import Number, Ticket
from tests.sim.rref.judge import inconsistencies

B, A, C = "owner", "a", "c"
NOTHING = {"owners": 0, "forks": 0, "held": 0, "pending_users": 0, "pending_children": 0}


def request(ticket: Ticket) -> ControlMessage:
    return ControlMessage(Kind.RREF_FORK_REQUEST, ticket.owner, ticket.reference, ticket.fork)


def accept(ticket: Ticket) -> ControlMessage:
    return ControlMessage(Kind.RREF_CHILD_ACCEPT, ticket.parent, ticket.reference, ticket.fork)


def delete(ticket: Ticket) -> ControlMessage:
    return ControlMessage(Kind.RREF_USER_DELETE, ticket.owner, ticket.reference, ticket.fork)


def made() -> tuple[References, References, Ticket]:
    """A value of the owner's that A asked for."""
    owner, a = References(B), References(A)
    ticket = a.ask(B)
    assert owner.created(ticket.reference, ticket.fork, A) == ([], True)
    assert a.confirmed(ticket.fork) == []
    return owner, a, ticket


def passed(a: References, ticket: Ticket) -> tuple[References, Ticket]:
    """A reference that A has passed on to C, which has it now."""
    c = References(C)
    gift = a.give(ticket.fork, C)
    assert gift is not None
    assert c.take(gift) == [request(gift)]
    return c, gift


def gone(*machines: References) -> None:
    for machine in machines:
        assert machine.counts() == NOTHING
        assert inconsistencies(machine) == []


# Making and dropping.


def test_a_value_lives_until_its_only_user_drops_it() -> None:  # RR-1, RR-2
    owner, a, ticket = made()
    assert owner.counts() == NOTHING | {"owners": 1, "forks": 1}
    assert a.state_of(ticket.fork) is ForkState.CONFIRMED
    assert a.drop(ticket.fork) == [delete(ticket)]
    assert a.state_of(ticket.fork) is ForkState.DELETING
    assert owner.user_deleted(ticket.reference, ticket.fork) == [Freed(ticket.reference)]
    assert owner.was_freed(ticket.reference)
    assert a.deleted(ticket.fork) == []
    assert a.state_of(ticket.fork) is None
    gone(owner, a)


def test_a_fork_dropped_before_it_is_confirmed_is_deleted_on_confirmation() -> None:  # RR-2
    a = References(A)
    ticket = a.ask(B)
    assert a.counts() == NOTHING | {"held": 1, "pending_users": 1}
    assert a.drop(ticket.fork) == []
    assert a.confirmed(ticket.fork) == [delete(ticket)]


def test_every_message_may_come_again() -> None:  # RR-3, RR-6
    owner, a, ticket = made()
    assert owner.created(ticket.reference, ticket.fork, A) == ([], False)
    assert a.confirmed(ticket.fork) == []
    c, gift = passed(a, ticket)
    for _ in range(2):
        assert owner.fork_requested(gift.reference, gift.fork, C)
        assert owner.counts()["forks"] == 2
    assert c.confirmed(gift.fork) == [accept(gift)]
    assert c.confirmed(gift.fork) == c.refused(gift.fork) == []
    a.drop(ticket.fork)
    assert a.child_accepted(gift.fork) == [delete(ticket)]
    assert a.child_accepted(gift.fork) == []
    c.drop(gift.fork)
    owner.user_deleted(ticket.reference, ticket.fork)
    assert owner.user_deleted(gift.reference, gift.fork) == [Freed(ticket.reference)]
    assert owner.user_deleted(gift.reference, gift.fork) == []
    for machine, fork in ((a, ticket.fork), (c, gift.fork)):
        assert machine.deleted(fork) == machine.deleted(fork) == []
        assert machine.drop(fork) == machine.refused(fork) == []
    gone(owner, a, c)


def test_a_value_deleted_before_its_creation_stays_deleted() -> None:  # RR-3
    owner, a = References(B), References(A)
    ticket = a.ask(B)
    a.confirmed(ticket.fork)  # no answer came in time
    a.drop(ticket.fork)
    assert owner.user_deleted(ticket.reference, ticket.fork) == []
    assert owner.created(ticket.reference, ticket.fork, A) == ([Freed(ticket.reference)], True)
    assert owner.created(ticket.reference, ticket.fork, A) == ([], False)
    gone(owner)


def test_a_late_fork_request_brings_nothing_back() -> None:  # RR-3
    owner, a, ticket = made()
    c, gift = passed(a, ticket)
    assert owner.user_deleted(gift.reference, gift.fork) == []
    assert owner.fork_requested(gift.reference, gift.fork, C)
    assert owner.counts()["forks"] == 1
    owner.user_deleted(ticket.reference, ticket.fork)
    assert not owner.fork_requested(gift.reference, gift.fork, C)
    gone(owner)
    assert c.counts()["pending_users"] == 1


def test_only_the_newest_of_the_deleted_are_remembered() -> None:  # RR-4
    owner = References(B, remembered=2)
    numbers = [Number(A, one) for one in range(3)]
    for number in numbers:
        owner.user_deleted(Number(A, 99), number)
    for number in numbers:
        owner.fork_requested(Number(A, 99), number, A)
    assert owner.counts()["forks"] == 1
    assert len(owner._deleted) == 2


# Values of one's own.


def test_an_owner_holds_its_value_as_often_as_it_likes() -> None:  # RR-1
    owner = References(B)
    number = owner.own()
    assert owner.hold(number)
    assert owner.release(number) == []
    assert owner.release(number) == [Freed(number)]
    assert owner.release(number) == []
    assert not owner.hold(number)
    assert owner.give_own(number, A) is None
    gone(owner)


def test_a_reference_that_the_owner_gives_is_counted_before_it_is_sent() -> None:  # RR-1
    owner, a = References(B), References(A)
    number = owner.own()
    ticket = owner.give_own(number, A)
    assert ticket is not None
    assert owner.release(number) == []
    assert a.take(ticket) == []
    assert a.state_of(ticket.fork) is ForkState.CONFIRMED
    assert a.drop(ticket.fork) == [delete(ticket)]
    assert owner.user_deleted(number, ticket.fork) == [Freed(number)]
    gone(owner)


def test_a_reference_that_the_owner_gives_itself_is_a_hold() -> None:  # RR-2
    owner = References(B)
    number = owner.own()
    ticket = owner.give_own(number, B)
    assert ticket is not None
    assert owner.release(number) == []
    assert owner.take(ticket) == owner.take(ticket) == []
    assert owner.counts() == NOTHING | {"owners": 1}
    assert owner.release(number) == []
    assert owner.release(number) == [Freed(number)]
    gone(owner)


def test_a_reference_given_back_twice_is_held_twice() -> None:  # RR-3
    owner, a, ticket = made()
    back = a.give(ticket.fork, B)
    assert back is not None
    assert a.drop(ticket.fork) == []
    assert owner.take(back) == owner.take(back) == [accept(back)]
    assert a.child_accepted(back.fork) == [delete(ticket)]
    assert owner.user_deleted(ticket.reference, ticket.fork) == []
    assert owner.release(ticket.reference) == []
    assert owner.release(ticket.reference) == [Freed(ticket.reference)]
    assert owner.take(back) == [accept(back)]  # too late, and still accepted
    gone(owner)


def test_a_reference_given_back_in_a_request_is_accepted_by_the_reply() -> None:  # RR-1, RR-2
    owner, a, ticket = made()
    back, onward = a.give(ticket.fork, B), a.give(ticket.fork, C)
    assert back is not None
    assert onward is not None
    assert a.drop(ticket.fork) == []
    assert owner.take(back, in_request=True) == []
    assert a.taken_by(C, [onward]) == []  # what another worker has is not counted yet
    assert a.taken_by(B, [back]) == a.taken_by(B, [back]) == []
    assert a.counts()["pending_children"] == 1
    assert a.child_accepted(onward.fork) == [delete(ticket)]


def test_a_reference_given_back_in_a_request_without_a_reply_is_accepted_too() -> None:
    owner, a, ticket = made()  # RR-2
    back = a.give(ticket.fork, B)
    assert back is not None
    assert owner.take(back, in_request=True) == []
    assert owner.come_to_nothing(back) == [accept(back)]  # UNREAD
    assert owner.release(ticket.reference) == []
    assert a.drop(ticket.fork) == []
    assert a.child_accepted(back.fork) == [delete(ticket)]


def test_one_worker_may_be_owner_and_user() -> None:  # RR-1, RR-2
    both = References(B)
    ticket = both.ask(B)
    assert both.created(ticket.reference, ticket.fork, B) == ([], True)
    both.confirmed(ticket.fork)
    gift = both.give(ticket.fork, B)
    assert gift is not None
    assert both.take(gift) == [accept(gift)]
    assert both.drop(ticket.fork) == []
    assert both.child_accepted(gift.fork) == [delete(ticket)]
    assert both.user_deleted(ticket.reference, ticket.fork) == []
    assert both.deleted(ticket.fork) == []
    assert both.release(ticket.reference) == [Freed(ticket.reference)]
    gone(both)


# Before the creation.


def test_forks_and_holds_wait_for_a_creation_that_they_overtook() -> None:  # RR-1
    owner, a = References(B), References(A)
    ticket = a.ask(B)
    c, gift = passed(a, ticket)
    assert owner.fork_requested(gift.reference, gift.fork, C)
    assert owner.hold(ticket.reference)
    assert owner.created(ticket.reference, ticket.fork, A) == ([], True)
    assert owner.counts() == NOTHING | {"owners": 1, "forks": 2}
    assert owner.release(ticket.reference) == []
    assert c.confirmed(gift.fork) == [accept(gift)]


def test_nothing_is_left_of_a_creation_that_never_comes() -> None:  # RR-2
    owner = References(B)
    reference = Number(A, 1)
    owner.fork_requested(reference, Number(A, 3), C)
    assert owner.user_deleted(reference, Number(A, 3)) == [Freed(reference)]
    assert not owner.was_freed(reference)
    gone(owner)
    # And if it comes after all, it counts.
    assert owner.created(reference, Number(A, 2), A) == ([], True)
    assert owner.counts()["forks"] == 1


# Passing on.


def test_a_parent_stays_until_its_child_is_counted() -> None:  # RR-1
    owner, a, ticket = made()
    c, gift = passed(a, ticket)
    assert a.drop(ticket.fork) == []
    assert a.counts() == NOTHING | {"held": 1, "pending_children": 1}
    assert owner.fork_requested(gift.reference, gift.fork, C)
    assert c.confirmed(gift.fork) == [accept(gift)]
    assert a.child_accepted(gift.fork) == [delete(ticket)]
    assert a.give(ticket.fork, C) is None
    assert a.lost(ticket.fork) == DROPPED


def test_a_ticket_that_was_not_sent_is_taken_back() -> None:  # RR-2
    owner, a, ticket = made()
    gift = a.give(ticket.fork, C)
    assert gift is not None
    assert a.drop(ticket.fork) == []
    assert a.not_given(gift) == [delete(ticket)]
    assert a.not_given(gift) == []
    number = owner.own()
    given = owner.give_own(number, C)
    assert given is not None
    assert owner.release(number) == []
    assert owner.not_given(given) == [Freed(number)]
    mine = References(B)
    asked = mine.ask(B)
    back = mine.give(asked.fork, C)
    assert back is not None
    mine.not_given(back)
    assert mine.counts()["pending_children"] == 0


def test_a_ticket_that_comes_twice_has_two_holders() -> None:  # RR-3
    _, a, ticket = made()
    c, gift = passed(a, ticket)
    assert c.take(gift) == []
    c.confirmed(gift.fork)
    assert c.drop(gift.fork) == []
    assert c.lost(gift.fork) is None
    assert c.drop(gift.fork) == [delete(gift)]
    # Once more, while it is deleted: of no use, and dropped in its turn.
    assert c.take(gift) == []
    assert c.lost(gift.fork) == DROPPED
    assert c.give(gift.fork, A) is None
    assert c.deleted(gift.fork) == []
    assert c.state_of(gift.fork) is ForkState.LOST
    assert c.drop(gift.fork) == []
    # And after that.
    assert c.take(gift) == []
    assert c.lost(gift.fork) == DROPPED
    assert c.drop(gift.fork) == c.drop(gift.fork) == []
    gone(c)


def test_a_fork_that_comes_too_late_is_refused_and_lost() -> None:  # RR-5
    owner, a, ticket = made()
    c, gift = passed(a, ticket)
    d = c.give(gift.fork, "d")
    assert d is not None
    assert owner.died(A) == [Freed(ticket.reference)]
    assert not owner.fork_requested(gift.reference, gift.fork, C)
    assert c.refused(gift.fork) == [accept(gift)]
    assert c.lost(gift.fork) == VALUE_GONE
    assert c.give(gift.fork, A) is None
    assert c.child_accepted(d.fork) == []
    assert c.drop(gift.fork) == []
    gone(owner, c)


# Death.


def test_the_forks_of_the_dead_are_dropped() -> None:  # RR-2
    owner, _, ticket = made()
    other = owner.own()
    assert owner.died(A) == [Freed(ticket.reference)]
    assert owner.died(A) == []
    assert owner.is_dead(A)
    assert owner.created(ticket.reference, ticket.fork, A) == ([], False)
    late = Number(A, 9)
    assert owner.created(late, Number(A, 10), A) == ([Freed(late)], True)
    assert not owner.fork_requested(other, Number(A, 11), A)
    assert owner.give_own(other, A) is not None
    assert owner.counts() == NOTHING | {"owners": 1}


def test_forks_on_their_way_to_a_dead_worker_do_not_keep_a_value() -> None:  # RR-2
    _, a, ticket = made()
    first, second = a.give(ticket.fork, C), a.give(ticket.fork, "d")
    assert first is not None
    assert second is not None
    assert a.drop(ticket.fork) == []
    assert a.died(C) == []
    assert a.died("d") == [delete(ticket)]
    _, b, other = made()
    b.died(C)
    assert b.give(other.fork, C) is not None
    assert b.counts()["pending_children"] == 0


def test_a_reference_is_lost_with_its_owner() -> None:  # RR-5
    _, a, ticket = made()
    c, gift = passed(a, ticket)
    for machine, fork, told in ((a, ticket.fork, []), (c, gift.fork, [accept(gift)])):
        assert machine.died(B) == told
        assert machine.lost(fork) == OWNER_GONE
        assert machine.died(B) == []
        assert machine.drop(fork) == []
        gone(machine)
    asked = a.ask(B)
    assert a.lost(asked.fork) == OWNER_GONE
    late = References("d")
    late.died(B)
    assert late.take(gift) == [accept(gift)]
    assert late.lost(gift.fork) == OWNER_GONE


def test_a_fork_that_is_being_deleted_ends_with_its_owner() -> None:  # RR-2
    _, a, ticket = made()
    a.drop(ticket.fork)
    a.died(B)
    gone(a)


def test_a_parent_is_notified_if_the_owner_dies_before_it_counts_the_child() -> None:  # RR-2
    """The parent may have come after the owner was gone, and then it never hears of its end."""
    _, a, ticket = made()
    c, gift = passed(a, ticket)
    assert a.drop(ticket.fork) == []  # its child is on its way
    assert c.died(B) == [accept(gift)]
    assert c.lost(gift.fork) == OWNER_GONE
    assert a.child_accepted(gift.fork) == [delete(ticket)]  # which finds that the owner is gone
    a.died(B)
    c.drop(gift.fork)
    gone(a, c)


def test_an_owner_that_outlives_its_lease_refuses_lost_references() -> None:  # RR-5
    """C hears of the owner's end before A and D do, while the owner still answers."""
    owner, a, ticket = made()
    c, gift = passed(a, ticket)
    d, onward = References("d"), c.give(gift.fork, "d")
    assert onward is not None
    assert d.take(onward) == [request(onward)]
    assert a.drop(ticket.fork) == []  # its child is on its way
    assert c.died(B) == [accept(gift)]
    assert a.child_accepted(gift.fork) == [delete(ticket)]
    assert owner.user_deleted(ticket.reference, ticket.fork) == [Freed(ticket.reference)]
    for fork, user in ((gift.fork, C), (onward.fork, "d")):
        assert not owner.fork_requested(ticket.reference, fork, user)
    assert c.refused(gift.fork) == []
    assert c.lost(gift.fork) == OWNER_GONE  # it was lost before it was refused
    assert d.refused(onward.fork) == [accept(onward)]
    assert d.lost(onward.fork) == VALUE_GONE
    assert c.child_accepted(onward.fork) == d.died(B) == a.died(B) == []
    assert d.lost(onward.fork) == OWNER_GONE
    assert c.drop(gift.fork) == d.drop(onward.fork) == []
    gone(owner, a, c, d)


def test_a_parent_is_notified_once_that_its_child_is_counted() -> None:
    _, a, ticket = made()
    c, gift = passed(a, ticket)
    assert c.confirmed(gift.fork) == [accept(gift)]
    assert c.died(B) == []


def test_a_dead_parent_gets_no_message() -> None:
    owner, a, ticket = made()
    c, gift = passed(a, ticket)
    c.died(A)
    assert owner.fork_requested(gift.reference, gift.fork, C)
    assert c.confirmed(gift.fork) == []


def test_everything_is_released_however_many_hold_it() -> None:
    owner, a, ticket = made()
    c, gift = passed(a, ticket)
    c.take(gift)
    owner.fork_requested(gift.reference, gift.fork, C)
    assert c.confirmed(gift.fork) == [accept(gift)]
    assert not owner.is_empty()
    assert owner.users() == {ticket.reference: {A, C}}
    own = owner.own()
    owner.hold(own)
    assert owner.release_all() == [Freed(own)]
    assert c.release_all() == [delete(gift)]
    assert a.release_all() == []  # its child is not accepted yet
    assert a.child_accepted(gift.fork) == [delete(ticket)]
    for one, machine in ((gift, c), (ticket, a)):
        owner.user_deleted(one.reference, one.fork)
        machine.deleted(one.fork)
        assert machine.is_empty()
        assert machine.drop(one.fork) == []  # the last holder releases it
    assert owner.is_empty()
    assert owner.users() == {}


# Any history, against a set of the holders.


# Calls that ended without their answers.


def test_references_of_an_answer_that_was_not_read_are_dropped() -> None:
    """RR-2, for a value of the callee, and for one that it passes on."""
    owner, a, ticket = made()
    given = owner.give_own(ticket.reference, C)
    passed_on = a.give(ticket.fork, C)
    assert given is not None
    assert passed_on is not None
    assert owner.answered(C, 1, [given])
    assert a.answered(C, 1, [passed_on])
    c = References(C)
    for _ in range(2):  # told again, and dropped again
        assert owner.unread(C, 1) == [given]
        assert c.come_to_nothing(given) in ([delete(given)], [])
    assert a.unread(C, 1) == [passed_on]
    assert c.come_to_nothing(passed_on) == [request(passed_on)]
    assert owner.fork_requested(passed_on.reference, passed_on.fork, C)
    assert c.confirmed(passed_on.fork) == [accept(passed_on), delete(passed_on)]
    assert a.child_accepted(passed_on.fork) == []
    for one in (given, passed_on):
        owner.user_deleted(one.reference, one.fork)
        c.deleted(one.fork)
    assert (owner.unread(C, 1), a.unread(C, 1)) == ([], [])
    assert a.drop(ticket.fork) == [delete(ticket)]
    assert owner.user_deleted(ticket.reference, ticket.fork) == [Freed(ticket.reference)]
    a.deleted(ticket.fork)
    assert owner.unread(C, 1) == []
    gone(owner, a, c)


def test_a_reference_given_too_late_is_refused() -> None:
    owner, _, ticket = made()
    assert owner.unread(C, 1) == []
    given = owner.give_own(ticket.reference, C)
    assert given is not None
    assert not owner.answered(C, 1, [given])
    assert owner.not_given(given) == []
    assert owner.counts()["forks"] == 1


def test_a_reference_that_arrives_after_its_release_is_lost() -> None:
    owner, a, ticket = made()
    gift = a.give(ticket.fork, C)
    assert gift is not None
    c = References(C)
    assert c.come_to_nothing(gift) == [request(gift)]
    assert owner.fork_requested(gift.reference, gift.fork, C)
    assert c.confirmed(gift.fork) == [accept(gift), delete(gift)]
    c.deleted(gift.fork)
    assert c.take(gift) == []
    assert c.lost(gift.fork) == DROPPED
    c.drop(gift.fork)
    gone(c)


def test_a_reference_that_comes_back_to_its_owner_unneeded_is_accepted() -> None:
    owner, a, ticket = made()
    gift = a.give(ticket.fork, B)
    assert gift is not None
    assert owner.come_to_nothing(gift) == [accept(gift)]
    assert owner.counts()["forks"] == 1
    a.child_accepted(gift.fork)
    a.drop(ticket.fork)
    assert owner.user_deleted(ticket.reference, ticket.fork) == [Freed(ticket.reference)]
    assert owner.come_to_nothing(gift) == [accept(gift)]
    gone(owner)


class History(RuleBasedStateMachine):
    """One value of one owner, three users; messages in any order, repeated, with one owner's view.

    The reference: its holders, as a set. The value is there as long as one of them is counted,
    and is freed when it is empty and everything has arrived.
    """

    USERS = (A, C, "d")

    def __init__(self) -> None:
        super().__init__()
        self.machines = {name: References(name) for name in (B, *self.USERS)}
        self.number = self.machines[B].own()
        self.holders: dict[str, list[Number]] = {name: [] for name in self.USERS}
        self.own_holds = 1
        self.freed = False
        self.mail: list[ControlMessage] = []
        self.gifts: list[tuple[str, Ticket]] = []
        self.dead: set[str] = set()

    def perform(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, ControlMessage):
                if outcome not in self.mail:
                    self.mail.append(outcome)
            else:
                assert not self.freed
                self.freed = True

    def sender(self, sent: ControlMessage) -> str:
        if sent.kind is Kind.RREF_CHILD_ACCEPT:
            return self.taker[sent.fork]
        return next(name for name, one in self.machines.items() if sent.fork in one._held)

    @property
    def taker(self) -> dict[Number, str]:
        return {ticket.fork: to for to, ticket in self.gifts}

    @precondition(lambda self: self.own_holds)
    @rule(to=st.sampled_from((B, *USERS)))
    def give_own(self, to: str) -> None:
        ticket = self.machines[B].give_own(self.number, to)
        assert ticket is not None
        if to not in self.dead:
            self.gifts.append((to, ticket))
            self.take(len(self.gifts) - 1)

    @rule(giver=st.sampled_from(USERS), to=st.sampled_from((B, *USERS)), data=st.data())
    def give(self, giver: str, to: str, data: st.DataObject) -> None:
        forks = self.holders[giver]
        if forks and giver not in self.dead and to not in self.dead:
            ticket = self.machines[giver].give(data.draw(st.sampled_from(forks)), to)
            if ticket is not None:
                self.gifts.append((to, ticket))
                self.take(len(self.gifts) - 1)

    @precondition(lambda self: self.gifts)
    @rule(data=st.data())
    def take_again(self, data: st.DataObject) -> None:
        self.take(data.draw(st.integers(0, len(self.gifts) - 1)))

    def take(self, number: int) -> None:
        to, ticket = self.gifts[number]
        if to in self.dead:
            return
        if to == B:
            self.own_holds += not self.machines[B].was_freed(self.number)
        else:
            self.holders[to].append(ticket.fork)
        self.perform(self.machines[to].take(ticket))

    @precondition(lambda self: self.own_holds)
    @rule()
    def release(self) -> None:
        self.own_holds -= 1
        self.perform(self.machines[B].release(self.number))

    @rule(user=st.sampled_from(USERS), data=st.data())
    def drop(self, user: str, data: st.DataObject) -> None:
        forks = self.holders[user]
        if forks and user not in self.dead:
            fork = data.draw(st.sampled_from(forks))
            forks.remove(fork)
            self.perform(self.machines[user].drop(fork))

    @precondition(lambda self: self.mail)
    @rule(data=st.data(), answered=st.booleans())
    def deliver(self, data: st.DataObject, answered: bool) -> None:
        self.handle(data.draw(st.sampled_from(self.mail)), answered)

    def handle(self, sent: ControlMessage, answered: bool) -> None:
        target, counted = self.machines[sent.to], True
        sender = self.taker[sent.fork]
        if sender in self.dead or sent.to in self.dead:
            self.mail.remove(sent)
            return
        match sent.kind:
            case Kind.RREF_FORK_REQUEST:
                counted = target.fork_requested(sent.reference, sent.fork, sender)
            case Kind.RREF_CHILD_ACCEPT:
                self.perform(target.child_accepted(sent.fork))
            case _:
                self.perform(target.user_deleted(sent.reference, sent.fork))
        if not answered:
            return
        self.mail.remove(sent)
        machine = self.machines[sender]
        if sent.kind is Kind.RREF_USER_DELETE:
            self.perform(machine.deleted(sent.fork))
        elif sent.kind is Kind.RREF_FORK_REQUEST:
            assert counted or self.dead, "refused, and all live (RR-5)"
            answer = machine.confirmed if counted else machine.refused
            self.perform(answer(sent.fork))

    @precondition(lambda self: not self.dead)
    @rule(user=st.sampled_from(USERS))
    def die(self, user: str) -> None:
        self.dead.add(user)
        self.holders[user] = []
        for name, machine in self.machines.items():
            if name != user:
                self.perform(machine.died(user))

    @invariant()
    def never_freed_while_it_is_held(self) -> None:  # RR-1
        for name, machine in self.machines.items():
            if name not in self.dead:
                assert inconsistencies(machine) == []
        if self.freed:
            assert not self.own_holds
            for user, forks in self.holders.items():
                states = {self.machines[user].state_of(fork) for fork in forks}
                assert ForkState.CONFIRMED not in states

    def teardown(self) -> None:  # RR-2
        for user, forks in self.holders.items():
            for fork in forks:
                self.perform(self.machines[user].drop(fork))
        for _ in range(self.own_holds):
            self.perform(self.machines[B].release(self.number))
        while self.mail:
            self.handle(self.mail[0], answered=True)
        assert self.freed
        gone(*(machine for name, machine in self.machines.items() if name not in self.dead))


TestHistory = pytest.mark.filterwarnings("default")(History.TestCase)
TestHistory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
