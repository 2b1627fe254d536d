"""One node at a time, by hand: ND-1 to ND-6, and what it does when things go wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.ids import NodeId
from holdfast.rendezvous.effects import (
    Closed,
    Counted,
    Explained,
    LeaseHeld,
    Left,
    RoundOver,
    RoundReady,
    StoreLost,
    TimedOut,
)
from holdfast.rendezvous.model import Failures, MemberRank, Phase, RoundRecord, Status
from holdfast.store.ops import (
    Change,
    CompareSet,
    Get,
    Guarded,
    LeaseGrant,
    LeaseKeep,
    LeaseRevoke,
)
from tests.unit.rendezvous.by_hand import (
    KEYS,
    NO_STORE,
    RULES,
    WALL,
    World,
    announced,
    pair,
    record,
)


class TestRounds:
    def test_two_nodes_meet(self) -> None:
        world, a, b = pair()
        assert a.node.round == b.node.round == record(world).number
        assert a.node.id == "a"
        assert record(world).status is Status.COMPLETE
        assert (a.take(RoundOver), b.take(RoundOver)) == ([], [])

    def test_waiting_is_explained_when_it_changes(self) -> None:
        world = World(replace(RULES, min_nodes=3, max_nodes=3))
        a = world.add("a")
        world.settle()
        assert a.take(Explained)[-1].progress.reason == "have 1 of 3: waiting for 2 more"
        b = world.add("b")
        world.run(1)
        assert b.take(Explained)[-1].progress.reason == "have 2 of 3: waiting for 1 more"
        a.take(Explained)
        world.run(20)
        assert (a.take(Explained), b.take(Explained)) == ([], [])

    def test_a_node_works_in_one_round_at_a_time(self) -> None:
        """ND-1."""
        world, a, b = pair()
        b.node.ask("a worker failed", world.now)
        world.settle()
        over = a.the(RoundOver)
        assert (over.number, over.reason) == (1, "round 1 is over: host-b: a worker failed")
        assert a.take(RoundReady) == b.take(RoundReady) == []  # a has not asked yet
        a.node.ask("", world.now)
        world.settle()
        assert a.the(RoundReady).record == b.the(RoundReady).record == record(world)
        assert record(world).number == 2

    def test_a_round_without_this_node_is_none_of_its_own(self) -> None:
        """ND-1: a spare waits for as long as the round lasts."""
        world, a, b = pair()
        spare = world.add("s")
        world.run(10 * RULES.join_s)
        assert not spare.take(RoundReady)
        assert not spare.take(TimedOut)
        assert spare.node.reason.endswith("; 1 waiting")
        world.kill(b)
        world.run(RULES.lease_s + 1)
        a.node.ask("", world.now)
        world.settle()
        assert (a.the(RoundReady).rank, spare.the(RoundReady).rank) == (0, 1)

    def test_a_round_that_it_never_heard_of_makes_its_wish_no_older(self) -> None:
        """Changes may be merged: the next it hears is that the round which named it is over."""
        world = World(RULES)
        world.add("a")
        world.add("z")
        world.settle()
        b = world.add("b")
        world.settle()
        world.put(KEYS.place("2/x", NodeId("b")), MemberRank(1).encode())
        over = RoundRecord(3, Status.FORMING, "a is gone", size=2, roll="2/x")
        b.node.changed([Change(KEYS.round, over.encode(), 99)], world.now)
        assert b.step()
        assert b.node._me.round == 2
        assert b.take(RoundReady) == []

    def test_a_node_that_withdraws_while_it_reads_its_place_works_in_no_round(self) -> None:
        world = World(RULES)
        world.add("a")
        b = world.add("b")
        b.hold = Get
        world.settle()
        assert isinstance(b.held, Get)
        b.node.withdraw(world.now)
        b.let_go()
        world.settle()
        assert b.take(RoundReady) == []

    def test_its_own_round_told_again_is_no_end(self) -> None:
        world, a, b = pair()
        world.put(KEYS.round, replace(record(world), reason="told again").encode())
        world.settle()
        assert a.take(RoundOver) == b.take(RoundOver) == []

    def test_a_member_that_dies_ends_the_round_within_its_lease(self) -> None:
        world, a, b = pair()
        world.kill(b)
        world.run(RULES.lease_s + 0.1)
        assert a.the(RoundOver).reason == "round 1 is over: host-b is gone"

    def test_a_member_that_leaves_ends_the_round_and_not_the_run(self) -> None:
        """RV-4."""
        world, a, b = pair()
        b.node.leave(world.now)
        world.settle()
        assert b.take(Left) == [Left()]
        assert a.the(RoundOver).reason == "round 1 is over: host-b is gone"
        assert a.take(Closed) == []
        assert world.entry(KEYS.node(NodeId("b"))) is None
        c = world.add("c")
        a.node.ask("", world.now)
        world.settle()
        assert (a.the(RoundReady).rank, c.the(RoundReady).rank) == (0, 1)


class TestSilence:
    def test_a_node_that_was_silent_learns_that_its_round_is_over(self) -> None:
        """ND-3."""
        world, _a, b = pair()
        b.stopped = True
        world.run(RULES.lease_s + 1)
        b.stopped = False
        b.inbox = []  # it has not heard of the new record yet
        world.run(RULES.keep_alive_s)
        assert any(isinstance(op, LeaseKeep) for op in b.ops)
        assert b.the(RoundOver).reason == "this node was silent for longer than its lease"

    def test_a_late_answer_to_a_renewal_costs_no_lease(self) -> None:
        """HL-4: the store counts from the request, so the next renewal is due at once."""
        world, _a, b = pair()
        b.hold = LeaseKeep
        world.run(RULES.keep_alive_s)
        assert isinstance(b.held, LeaseKeep)
        b.hold = None
        answer = world.apply(b.held)
        world.run(0.8 * RULES.lease_s)  # the answer takes so long
        b.node.done(answer, world.now)
        world.run(RULES.lease_s)
        assert b.take(RoundOver) == []
        assert record(world).number == 1

    def test_a_new_lease_gives_no_time_to_the_old_round(self) -> None:
        """HL-3: its workers were to be gone before the old lease could end."""
        world, _a, b = pair()
        b.take(LeaseHeld)
        b.stopped = True
        world.run(RULES.lease_s + 1)
        b.stopped = False
        world.run(2 * RULES.keep_alive_s)
        assert b.take(RoundOver)
        assert [type(op) for op in b.ops].count(LeaseGrant) == 2
        assert b.take(LeaseHeld) == []
        b.node.ask("", world.now)
        world.settle()
        assert b.the(LeaseHeld).kill_at > world.now

    def test_its_end_is_told_once(self) -> None:
        world, _a, b = pair()
        b.stopped = True
        world.run(RULES.lease_s + 1)
        b.stopped = False
        world.run(2 * RULES.keep_alive_s)
        assert len(b.take(RoundOver)) == 1

    def test_one_that_waits_comes_back_with_a_new_lease(self) -> None:
        world = World(RULES)
        a = world.add("a")
        world.settle()
        a.stopped = True
        world.run(RULES.lease_s + 1)
        assert world.entry(KEYS.node(NodeId("a"))) is None
        a.stopped = False
        world.run(RULES.keep_alive_s)
        assert world.entry(KEYS.node(NodeId("a"))) is not None
        assert a.take(RoundOver) == []
        assert a.node.leading


class TestFailures:
    def test_a_round_counts_once(self) -> None:
        """ND-4."""
        world, a, b = pair()
        for each in (a, b, a):
            each.node.count_failure(world.now, WALL)
            world.settle()
            assert each.the(Counted) == Counted(1, Failures(1, 1, (WALL,)))

    def test_two_at_once_count_once(self) -> None:
        """ND-4: the second one loses the race in the store."""
        world, a, b = pair()
        for each in (a, b):
            each.hold = Guarded
            each.node.count_failure(world.now, WALL)
        world.settle()
        a.let_go()
        b.inbox = []
        b.let_go()
        world.settle()
        assert a.the(Counted) == b.the(Counted) == Counted(1, Failures(1, 1, (WALL,)))

    def test_the_next_round_counts_again(self) -> None:
        world, a, b = pair()
        a.node.count_failure(world.now, WALL)
        world.settle()
        for each in (a, b):
            each.node.ask("a failure", world.now)
        world.settle()
        b.node.count_failure(world.now, WALL)
        world.settle()
        assert b.the(Counted) == Counted(2, Failures(2, 2, (WALL, WALL)))
        entry = world.entry(KEYS.failures)
        assert entry is not None
        assert Failures.decode(entry.value) == Failures(2, 2, (WALL, WALL))

    def test_a_round_that_is_over_counts_no_more(self) -> None:
        """ND-4: the store refuses it."""
        world, a, b = pair()
        b.hold = Guarded
        b.node.count_failure(world.now, WALL)
        world.settle()
        a.node.ask("over", world.now)
        world.settle()
        b.let_go()
        world.settle()
        assert b.the(Counted) == Counted(1, Failures())
        assert world.entry(KEYS.failures) is None

    def test_a_late_report_is_not_charged_to_a_later_round(self) -> None:
        """ND-4: the next round begins before an operation could be performed for it.

        The answer names the round: it says nothing of a failure of the later one.
        """
        world, a, b = pair()
        b.hold = CompareSet
        for each in (a, b):
            each.node.ask("a failure", world.now)
        b.node.count_failure(world.now, WALL)
        assert b.node.round == 1
        world.settle()
        assert b.held is not None
        announced = world.apply(b.held)
        world.settle()
        b.hold = None
        b.node.done(announced, world.now)
        world.settle()
        assert b.the(RoundReady).record.number == 2
        assert b.the(Counted) == Counted(1, Failures())
        assert world.entry(KEYS.failures) is None

    def test_members_of_a_round_agree_on_the_failures_before_it(self) -> None:
        """RV-7: also one that comes later, and though their leader has not heard of the failure."""
        world, a, b = pair()
        a.deaf = True
        b.node.count_failure(world.now, WALL)
        world.settle()
        a.inbox = [change for change in a.inbox if change.key != KEYS.failures]
        a.deaf = False
        b.node.leave(world.now)
        c = world.add("c")
        a.node.ask("", world.now)
        world.settle()
        assert a.the(RoundReady).record.failures == c.the(RoundReady).record.failures == 1

    def test_a_new_leader_knows_the_failures_before_a_round(self) -> None:
        """RV-7."""
        world, a, b = pair()
        b.node.count_failure(world.now, WALL)
        world.settle()
        world.kill(a)
        c = world.add("c")
        world.run(RULES.lease_s + 1)
        b.node.ask("", world.now)
        world.settle()
        assert b.node.leading
        assert b.the(RoundReady).record.failures == c.the(RoundReady).record.failures == 1

    def test_what_a_leader_reads_is_no_answer_to_a_report(self) -> None:
        """ND-4: its reading is late, another leader has formed the round, and that has failed."""
        world, a, b = pair()
        a.hold = Get
        for each in (a, b):
            each.node.ask("", world.now)
        world.settle()
        assert a.held == Get(KEYS.failures)
        world.put(KEYS.round, replace(record(world), status=Status.COMPLETE).encode())
        world.settle()
        a.node.count_failure(world.now, WALL)
        a.let_go()
        world.settle()
        assert a.the(Counted) == Counted(2, Failures(1, 2, (WALL,)))

    def test_outside_a_round_nothing_is_counted(self) -> None:
        world = World(RULES)
        a = world.add("a")
        a.node.count_failure(world.now, WALL)
        world.settle()
        assert a.the(Counted) == Counted(0, Failures())


class TestFinish:
    def test_a_finished_member_leaves_and_the_round_goes_on(self) -> None:
        """RV-8, also for a leader that comes after it."""
        world, a, b = pair()
        a.node.finish(world.now)
        world.settle()
        assert announced(world, "a").phase is Phase.FINISHED
        a.node.leave(world.now)
        world.settle()
        assert a.take(Left) == [Left()]
        assert announced(world, "a").phase is Phase.LEFT
        world.run(3 * RULES.lease_s)
        assert b.node.leading
        assert b.take(RoundOver) == []

    def test_a_member_that_finishes_and_leaves_at_once(self) -> None:
        world, a, b = pair()
        b.node.finish(world.now)
        b.node.leave(world.now)
        world.run(RULES.lease_s)
        assert b.take(Left) == [Left()]
        assert a.take(RoundOver) == []

    def test_one_that_has_said_so_has_left_though_its_host_is_gone_by_then(self) -> None:
        world, _, b = pair()
        b.node.finish(world.now)
        b.hold = LeaseRevoke
        b.node.leave(world.now)
        world.settle()
        assert announced(world, "b").phase is Phase.LEFT
        b.held = b.hold = None
        b.node.failed(StoreUnavailable("the host is gone"), world.now)
        world.settle()
        assert b.take(Left) == [Left()]

    def test_a_leader_that_leaves_follows_nothing_more(self) -> None:
        """It hears of its entry's end before the answer; the store may be gone after that."""
        world, a, _ = pair()
        a.hold = LeaseRevoke
        a.node.leave(world.now)
        world.settle()
        assert a.held is not None
        a.prefix, result = None, world.apply(a.held)
        a.node.changed([Change(KEYS.leader, None, 99)], world.now)
        a.node.done(result, world.now)
        assert not a.node.leading
        assert a.node.take_effects() == [Left()]

    def test_a_finished_member_that_dies_ends_the_round(self) -> None:
        """RV-8."""
        world, a, b = pair()
        b.node.finish(world.now)
        world.settle()
        world.kill(b)
        world.run(RULES.lease_s + 1)
        assert a.the(RoundOver).reason == "round 1 is over: host-b is gone"

    def test_a_finished_member_hears_that_the_round_is_over_and_asks_again(self) -> None:
        world, a, b = pair()
        b.node.finish(world.now)
        world.settle()
        a.node.ask("a worker failed", world.now)
        world.settle()
        assert b.the(RoundOver).number == 1
        b.node.ask("", world.now)
        world.settle()
        assert (a.the(RoundReady).rank, b.the(RoundReady).rank) == (0, 1)
        assert announced(world, "b").phase is Phase.WORKING

    def test_finishing_a_round_that_is_over_or_none_at_all_does_nothing(self) -> None:
        world, a, b = pair()
        spare = world.add("s")
        a.node.ask("", world.now)
        world.settle()
        for each in (b, spare):
            each.node.finish(world.now)
            each.node.leave(world.now)
        world.settle()
        assert world.entry(KEYS.node(NodeId("b"))) is None
        assert world.entry(KEYS.node(NodeId("s"))) is None

    def test_a_finished_member_that_leaves_after_the_end_leaves_nothing(self) -> None:
        world, a, b = pair()
        b.node.finish(world.now)
        world.settle()
        a.node.close("done", False, world.now)
        world.settle()
        b.node.leave(world.now)
        world.settle()
        assert world.entry(KEYS.node(NodeId("b"))) is None

    def test_finishing_and_leaving_cost_one_operation_each_and_the_lease(self) -> None:
        """ND-5."""
        world, _a, b = pair()
        before = len(b.ops)
        b.node.finish(world.now)
        world.settle()
        b.node.leave(world.now)
        world.settle()
        assert [type(op) for op in b.ops[before:]] == [CompareSet, CompareSet, LeaseRevoke]


class TestEnds:
    def test_no_round_in_time_ends_with_its_reason(self) -> None:
        """ND-6."""
        world = World(RULES)
        a = world.add("a")
        world.run(RULES.join_s - 0.1)
        assert a.take(TimedOut) == []
        world.run(0.1)
        reason = "no round within 60 s: have 1 of 2: waiting for 1 more"
        assert a.the(TimedOut).reason == reason
        world.settle()
        assert world.entry(KEYS.node(NodeId("a"))) is None
        a.node.ask("", world.now)
        world.add("b")
        world.settle()
        assert a.the(RoundReady).record.number == 1

    def test_no_word_at_all(self) -> None:
        """ND-6."""
        rules = replace(RULES, join_s=1)
        world = World(rules)
        a = world.add("a")
        a.cut = NO_STORE
        world.run(1)
        assert a.the(TimedOut).reason == "no round within 1 s: no leader has reported yet"

    def test_the_time_begins_with_the_round(self) -> None:
        world, _a, b = pair()
        spare = world.add("s")
        world.run(2 * RULES.join_s)
        b.node.leave(world.now)
        world.settle()
        world.run(RULES.join_s)
        assert len(spare.take(TimedOut)) == 1

    def test_closing_ends_it_for_everyone_for_good(self) -> None:
        """ND-6, RV-4."""
        world, a, b = pair()
        b.node.close("the job has failed", True, world.now)
        world.settle()
        kinds = [type(notice) for notice in a.notices]
        assert kinds.index(Closed) < kinds.index(RoundOver)  # or it would ask for another round
        assert a.the(Closed) == b.the(Closed) == Closed("the job has failed", True)
        assert a.the(RoundOver).reason == "the job has failed"
        a.node.ask("", world.now)
        world.settle()
        assert a.the(Closed) == Closed("the job has failed", True)
        b.node.close("again", False, world.now)
        late = world.add("late")
        world.run(1)
        assert late.take(Closed)[0] == Closed("the job has failed", True, late=True)
        assert record(world).reason == "the job has failed"

    def test_the_end_of_a_run_says_when_it_was(self) -> None:
        world, a, _b = pair()
        a.node.close("done", False, world.now, WALL)
        world.settle()
        assert a.the(Closed) == Closed("done", False, WALL)
        late = world.add("late", ask=False)
        world.run(1)
        late.node.ask("", world.now)
        assert late.take(Closed)[-1] == Closed("done", False, WALL, late=True)

    def test_a_spare_that_waited_when_it_ended_is_not_late(self) -> None:
        world, a, _b = pair()
        spare = world.add("spare")
        world.settle()
        a.node.close("done", False, world.now)
        world.settle()
        assert spare.the(Closed) == Closed("done", False)

    @pytest.mark.parametrize(("first", "second"), [(3, 2), (2, 3)])
    def test_a_node_with_other_numbers_of_nodes_ends_at_once(self, first: int, second: int) -> None:
        """ND-7."""
        world = World(replace(RULES, min_nodes=first, max_nodes=first))
        world.add("a")
        world.settle()
        world.rules = replace(RULES, min_nodes=second, max_nodes=second)
        b = world.add("b")
        world.settle()
        lost = b.the(StoreLost)
        assert lost.usage
        assert f"{second}:{second} nodes, the one that leads with {first}:{first}" in lost.reason

    def test_closing_before_anything_was_published(self) -> None:
        world = World(RULES)
        a = world.add("a", ask=False)
        a.node.close("", False, world.now)
        world.settle()
        assert a.the(Closed) == Closed("closed", False)

    def test_closing_a_record_that_was_not_known(self) -> None:
        world, _a, _b = pair()
        c = world.add("c", ask=False)
        c.deaf = True
        c.node.close("x" * 300, False, world.now)
        world.run(1)
        assert record(world).status is Status.CLOSED
        assert len(record(world).reason) == 200

    def test_closing_and_leaving_at_once(self) -> None:
        world, a, _b = pair()
        a.node.close("done", False, world.now)
        a.node.leave(world.now)
        world.settle()
        assert (a.take(Closed), a.take(Left)) == ([Closed("done", False)], [Left()])

    def test_a_node_that_never_had_a_lease_leaves_at_once(self) -> None:
        world = World(RULES)
        a = world.add("a")
        a.cut = NO_STORE
        world.settle()
        a.node.leave(world.now)
        a.cut = None
        world.run(1)
        assert a.take(Left) == [Left()]
        a.node.tick(world.now)
        assert (a.node.take_effects(), a.node.next_wake()) == ([], None)

    def test_a_node_that_lost_its_lease_leaves_a_closed_run_without_the_store(self) -> None:
        """ND-8: the store's host does not wait for a node that is not announced."""
        world, a, b = pair()
        b.stopped = True
        world.run(RULES.lease_s + 1)
        a.node.close("done", False, world.now)
        world.settle()
        b.stopped = False
        world.run(RULES.keep_alive_s)
        assert b.the(Closed) == Closed("done", False)
        assert isinstance(b.ops[-1], LeaseKeep)  # which told it of the loss, and was its last
        b.cut = NO_STORE
        b.node.leave(world.now)
        world.settle()
        assert (b.take(Left), b.take(StoreLost)) == ([Left()], [])

    def test_a_wish_can_be_taken_back(self) -> None:
        world = World(RULES)
        a = world.add("a")
        world.settle()
        a.node.withdraw(world.now)
        world.settle()
        assert world.entry(KEYS.node(NodeId("a"))) is None
        world.run(RULES.join_s + 1)
        assert a.take(TimedOut) == []

    def test_a_round_that_comes_as_the_wish_is_taken_back_is_left(self) -> None:
        world, a, b = pair()
        b.node.withdraw(world.now)
        world.settle()
        assert a.the(RoundOver).reason == "round 1 is over: host-b is gone"
        b.node.ask("", world.now)
        a.node.ask("", world.now)
        world.settle()
        assert b.the(RoundReady).record.number == 2
