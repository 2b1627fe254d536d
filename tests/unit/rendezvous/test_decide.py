"""Every decision about a round, with its reason: RV-1 to RV-10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.ids import NodeId
from holdfast.rendezvous.decide import Decision, Rules, Situation, decide
from holdfast.rendezvous.model import Announcement, Member, Phase, Progress, RoundRecord, Status

RULES = Rules(min_nodes=2, max_nodes=4, join_s=100, last_call_s=10)
BEGIN = RoundRecord(1, Status.FORMING, "the run begins")


def node(
    name: str,
    phase: Phase = Phase.WAITING,
    round_: int = 0,
    slot: int | None = None,
    why: str = "",
) -> Announcement:
    return Announcement(NodeId(name), f"host-{name}", "127.0.0.1", 1, phase, round_, slot, why)


def finished(name: str, phase: Phase = Phase.FINISHED) -> Announcement:
    return node(name, phase, 1)


def working(name: str, round_: int = 1) -> Announcement:
    return node(name, Phase.WORKING, round_)


def seen(
    record: RoundRecord,
    nodes: Sequence[Announcement],
    forming_since: float = 0.0,
    enough_since: float | None = None,
) -> Situation:
    by_id = {node.node: node for node in nodes}
    return Situation(record, listed(record), by_id, forming_since, enough_since)


def listed(record: RoundRecord) -> tuple[Member, ...]:
    """Return the members of a roll, whose name here says them."""
    names = record.roll.partition("/")[2]
    return tuple(node(name).member() for name in names.split())


def complete(names: str, number: int = 1) -> RoundRecord:
    roll = f"{number}/{' '.join(names)}"
    reason = f"round {number} is complete with {names}"
    return RoundRecord(number, Status.COMPLETE, reason, size=len(names), roll=roll)


def forming(names: str, number: int = 2) -> RoundRecord:
    return replace(complete(names, number), status=Status.FORMING, reason="one is gone")


def members(decision: Decision) -> str:
    assert decision.record is not None
    assert decision.record.size == len(decision.members)
    first = decision.members[0]
    assert (decision.record.address, decision.record.port) == (first.address, first.port)
    return "".join(member.node for member in decision.members)


class TestForming:
    def test_too_few_wait_without_a_limit_of_their_own(self) -> None:
        decision = decide(
            seen(BEGIN, [node(name) for name in "abcdef"]), Rules(min_nodes=8, max_nodes=8), 5.0
        )
        assert decision.record is None
        assert decision.reason == "have 6 of 8: waiting for 2 more"  # RV-6
        assert decision.wake_at is None
        assert (decision.progress.have, decision.progress.waiting) == (6, 0)

    def test_no_node_is_there(self) -> None:
        assert decide(seen(BEGIN, []), RULES, 0.0).reason == "have 0 of 2: waiting for 2 more"

    def test_all_places_taken_completes_at_once(self) -> None:
        decision = decide(seen(BEGIN, [node(name) for name in "dbca"]), RULES, 0.0)
        assert decision.record is not None
        assert (decision.record.status, decision.record.roll) == (Status.COMPLETE, "")
        assert members(decision) == "abcd"
        assert decision.reason == "round 1 is complete with 4: all places are taken"

    def test_spares_stay_outside_the_longest_waiting_get_in(self) -> None:
        decision = decide(seen(BEGIN, [node(name) for name in "zyxwab"]), RULES, 0.0)
        assert members(decision) == "wxyz"

    def test_enough_waits_for_the_last_call(self) -> None:
        situation = seen(BEGIN, [node("a"), node("b")], enough_since=20.0)
        decision = decide(situation, RULES, 23.0)
        assert decision.record is None
        assert decision.reason == "have 2, enough: last call for up to 4"
        assert decision.wake_at == 30.0  # RV-6
        assert decision.progress.left_s == 7.0
        assert decide(situation, RULES, 29.99).record is None
        over = decide(situation, RULES, 30.0)
        assert over.reason == "round 1 is complete with 2: the last call is over, have 2"
        assert members(over) == "ab"

    def test_the_last_call_begins_now_if_it_has_not(self) -> None:
        decision = decide(seen(BEGIN, [node("a"), node("b")]), RULES, 50.0)
        assert (decision.record, decision.wake_at) == (None, 60.0)

    def test_no_last_call_at_all(self) -> None:
        rules = replace(RULES, last_call_s=0)
        assert members(decide(seen(BEGIN, [node("a"), node("b")]), rules, 0.0)) == "ab"

    def test_members_of_the_last_round_are_waited_for_by_name(self) -> None:
        """RV-5: going without them would mean one more round a moment later."""
        situation = seen(forming("abc"), [node("a", round_=1), node("b", round_=1), working("c")])
        decision = decide(situation, RULES, 24.0)
        assert decision.reason == "have 2, enough: waiting for 1 to come back (host-c)"
        assert decision.progress.missing == ("host-c",)
        assert (decision.wake_at, decision.progress.left_s) == (25.0, 1.0)  # last call + lease
        late = decide(replace(situation, enough_since=0.0), RULES, 25.0)
        assert members(late) == "ab"

    def test_waiting_for_members_ends_before_waiting_nodes_give_up(self) -> None:
        rules = replace(RULES, join_s=20)
        situation = seen(forming("abc"), [node("a", round_=1), node("b", round_=1), working("c")])
        assert decide(situation, rules, 9.0).wake_at == 10.0
        assert members(decide(replace(situation, enough_since=0.0), rules, 10.0)) == "ab"

    def test_members_have_the_time_that_stopping_takes(self) -> None:
        rules = replace(RULES, stop_s=30.0)
        situation = seen(forming("abc"), [node("a", round_=1), node("b", round_=1), working("c")])
        assert decide(situation, rules, 30.0).wake_at == 45.0  # a lease to hear of it, and 30
        slow = replace(rules, last_call_s=40.0)
        assert decide(situation, slow, 30.0).wake_at == 50.0  # at most half of the join timeout

    def test_members_that_are_gone_are_named_as_missing(self) -> None:
        rules = replace(RULES, min_nodes=4)
        nodes = [node(name, round_=1) for name in "abc"]
        decision = decide(seen(forming("abcd"), nodes, forming_since=5.0), rules, 15.0)
        assert decision.reason == "have 3 of 4: waiting for 1 more (host-d)"
        assert decision.progress.missing == ("host-d",)
        assert decision.progress.left_s == 90.0  # of the join timeout

    def test_a_node_that_is_gone_does_not_come_back(self) -> None:
        nodes = [node("a", round_=1), node("b", round_=1), working("c")]
        decision = decide(seen(forming("abcd"), nodes), RULES, 0.0)
        assert decision.reason == "have 2, enough: waiting for 1 to come back (host-c)"
        assert decision.progress.missing == ("host-c", "host-d")

    def test_time_without_end_can_still_be_told(self) -> None:
        rules = replace(RULES, join_s=float("inf"))
        progress = decide(seen(BEGIN, [node("a")]), rules, 0.0).progress
        assert Progress.decode(progress.encode()) == progress

    def test_missing_nodes_are_named_even_below_the_minimum(self) -> None:
        situation = seen(forming("ab"), [node("a", round_=1), working("b")])
        reason = decide(situation, RULES, 0.0).reason
        assert reason == "have 1 of 2: waiting for 1 more (host-b)"

    def test_many_missing_are_counted(self) -> None:
        nodes = [working(f"n{number}") for number in range(11)]
        decision = decide(seen(forming(""), nodes), RULES, 0.0)
        assert decision.reason.endswith("host-n6, host-n7 and 3 more)")
        assert len(decision.progress.missing) == 8

    def test_a_node_that_stays_keeps_place_and_rank(self) -> None:
        nodes = [*map(node, "wxyz"), *(node(name, round_=1) for name in "cba")]
        assert members(decide(seen(forming("abcd"), nodes), RULES, 0.0)) == "abcw"

    def test_a_wish_that_was_granted_does_not_count_again(self) -> None:
        """RV-5: a member that died before it heard of its round is missed, not invited."""
        nodes = [node("a", round_=1), node("b", round_=1), node("c", round_=0)]
        decision = decide(seen(forming("abc"), nodes, enough_since=0.0), RULES, 20.0)
        assert decision.record is None
        assert decision.reason == "have 2, enough: waiting for 1 to come back (host-c)"
        nodes[2] = node("c", round_=1)
        decision = decide(seen(forming("abc"), nodes, enough_since=0.0), RULES, 20.0)
        assert members(decision) == "abc"

    @pytest.mark.parametrize(
        ("previous", "there", "newcomers", "expected"),
        [
            ("abc", "abc", "", "abc"),  # a worker failed
            ("abc", "ab", "", "ab"),  # a node died
            ("abc", "ab", "x", "abx"),  # a node died, and another waits for its place
            ("ab", "ab", "x", None),  # the run grows
            ("ab", "", "xy", None),  # no member is back
            ("", "", "xy", None),  # the run begins
        ],
    )
    def test_members_that_are_all_back_wait_for_no_last_call(
        self, previous: str, there: str, newcomers: str, expected: str | None
    ) -> None:
        """RV-10."""
        nodes = [*(node(name, round_=1) for name in there), *map(node, newcomers)]
        decision = decide(seen(forming(previous), nodes), RULES, 0.0)
        if expected is None:
            assert decision.reason.endswith("enough: last call for up to 4")
        else:
            assert members(decision) == expected
            assert decision.reason == (
                f"round 2 is complete with {len(expected)}: all living members of round 1 are back"
            )

    def test_a_member_that_lives_and_has_not_asked_leaves_the_last_call_in_force(self) -> None:
        """RV-10: it may still come, so its time to come back and then the last call pass first."""
        situation = seen(forming("abc"), [node("a", round_=1), node("b", round_=1), working("c")])
        decision = decide(replace(situation, enough_since=20.0), RULES, 25.0)
        assert decision.reason == "have 2, enough: last call for up to 4"


class TestRanks:
    def test_a_policy_decides_the_order(self) -> None:
        def backwards(
            chosen: Sequence[Announcement], previous: Sequence[NodeId]
        ) -> list[Announcement]:
            assert previous == ["a", "b"]
            return sorted(chosen, key=lambda node: node.node, reverse=True)

        nodes = [node(name, round_=1) for name in "abcd"]
        assert members(decide(seen(forming("ab"), nodes), RULES, 0.0, backwards)) == "dcba"

    @pytest.mark.parametrize("wrong", [lambda nodes: nodes[:1], lambda nodes: [*nodes, nodes[0]]])
    def test_a_policy_cannot_change_the_members(self, wrong: Any) -> None:
        """RV-2."""
        nodes = [node(name) for name in "abcd"]
        with pytest.raises(UsageError, match=r"^the rank policy must return the nodes"):
            decide(seen(BEGIN, nodes), RULES, 0.0, lambda chosen, previous: wrong(chosen))

    def test_a_second_node_with_the_same_rank_is_named(self) -> None:
        rules = Rules(min_nodes=2, max_nodes=2)
        decision = decide(seen(BEGIN, [node("a", slot=0), node("b", slot=0)]), rules, 0.0)
        assert decision.reason == (
            "have 1 of 2: waiting for 1 more; host-b cannot have rank 0: host-a has it"
        )

    def test_a_rank_beyond_the_last_is_named(self) -> None:
        rules = Rules(min_nodes=2, max_nodes=2)
        decision = decide(seen(BEGIN, [node("a", slot=0), node("b", slot=2)]), rules, 0.0)
        assert decision.reason == (
            "have 1 of 2: waiting for 1 more; host-b cannot have rank 2: there are 2"
        )

    def test_a_twin_does_not_take_the_place_of_a_member(self) -> None:
        rules = Rules(min_nodes=2, max_nodes=2)
        nodes = [node("x", slot=0), node("b", round_=1, slot=1), node("a", round_=1, slot=0)]
        assert members(decide(seen(forming("ab"), nodes), rules, 0.0)) == "ab"

    def test_a_twin_beside_a_complete_round_is_named(self) -> None:
        rules = Rules(min_nodes=2, max_nodes=2)
        nodes = [
            node("x", slot=0),
            replace(working("a"), slot=0),
            replace(working("b"), slot=1),
        ]
        decision = decide(seen(complete("ab"), nodes), rules, 0.0)
        assert decision.progress.waiting == 0
        assert decision.reason.endswith("; 1 waiting; host-x cannot have rank 0: host-a has it")


class TestComplete:
    def test_it_goes_on_for_as_long_as_all_work(self) -> None:
        decision = decide(seen(complete("ab"), [working("a"), working("b")]), RULES, 0.0)
        assert decision.record is None
        assert decision.reason == "round 1 is complete with ab"
        assert (decision.progress.have, decision.progress.waiting) == (2, 0)

    def test_a_member_that_has_not_taken_the_round_up_yet_ends_nothing(self) -> None:
        decision = decide(seen(complete("ab"), [working("a"), node("b")]), RULES, 0.0)
        assert decision.record is None

    def test_newcomers_wait_and_are_counted_up_to_the_free_places(self) -> None:
        inside = [working("a"), working("b")]
        for outside, waiting in (("c", 1), ("cd", 2), ("cdef", 2)):
            nodes = inside + [node(name) for name in outside]
            decision = decide(seen(complete("ab"), nodes), RULES, 0.0)
            assert decision.record is None  # RV-1
            assert decision.progress.waiting == waiting
            assert decision.reason.endswith(f"; {len(outside)} waiting")

    @pytest.mark.parametrize("phase", [Phase.WORKING, Phase.FINISHED])
    def test_a_node_that_has_not_asked_is_no_newcomer(self, phase: Phase) -> None:
        """RV-5: it was in the last round and may be dead; a round for it could be needless."""
        nodes = [working("a", 2), working("b", 2), node("c", phase, round_=1)]
        decision = decide(seen(complete("ab", 2), nodes), RULES, 0.0)
        assert decision.progress.waiting == 0
        assert decision.reason == "round 2 is complete with ab"
        nodes[2] = node("c", round_=1)
        assert decide(seen(complete("ab", 2), nodes), RULES, 0.0).progress.waiting == 1

    def test_a_member_that_is_gone_ends_the_round(self) -> None:
        decision = decide(seen(complete("ab"), [working("a")]), RULES, 0.0)
        assert decision.record == RoundRecord(
            2, Status.FORMING, "round 1 is over: host-b is gone", size=2, roll="1/a b"
        )

    @pytest.mark.parametrize(
        ("why", "told"),
        [("a worker failed", "host-b: a worker failed"), ("", "host-b asks for it")],
    )
    def test_a_member_that_asks_ends_the_round(self, why: str, told: str) -> None:
        nodes = [working("a"), node("b", round_=1, why=why)]
        decision = decide(seen(complete("ab"), nodes), RULES, 0.0)
        assert decision.reason == f"round 1 is over: {told}"

    def test_many_reasons_make_one_new_round(self) -> None:
        """RV-5, RV-3."""
        nodes = [node(name, round_=1, why="x") for name in "ab"]
        decision = decide(seen(complete("abcd"), nodes), RULES, 0.0)
        assert decision.record is not None
        assert decision.record.number == 2
        assert decision.reason == (
            "round 1 is over: host-c is gone; host-d is gone; host-a: x; host-b: x"
        )
        again = decide(seen(decision.record, nodes), RULES, 0.0)  # RM-4: it names the roll
        assert again.record is not None
        assert (again.record.number, members(again)) == (2, "ab")

    def test_a_long_story_is_cut_so_that_everyone_can_read_it(self) -> None:
        names = "abcdefgh"
        rules = Rules(min_nodes=1, max_nodes=8)
        nodes = [node(name, round_=1, why="w" * 200) for name in names]
        decision = decide(seen(complete(names), nodes), rules, 0.0)
        assert decision.record is not None
        assert RoundRecord.decode(decision.record.encode()) == decision.record
        assert type(decision.progress).decode(decision.progress.encode()) == decision.progress


class TestFinished:
    @pytest.mark.parametrize("phase", [Phase.FINISHED, Phase.LEFT])
    def test_a_round_of_which_some_have_finished_goes_on_and_admits_no_node(
        self, phase: Phase
    ) -> None:
        """RV-8, RV-9."""
        nodes = [working("a"), finished("b", phase), node("c")]
        decision = decide(seen(complete("ab"), nodes), RULES, 0.0)
        assert decision.record is None
        assert decision.progress.waiting == 0
        assert decision.reason == "round 1 is complete with ab; 1 finished; 1 waiting"

    def test_one_that_dies_before_it_leaves_ends_the_round(self) -> None:
        """RV-8: it was announced as finished, and now it is not announced at all."""
        decision = decide(seen(complete("ab"), [finished("a")]), RULES, 0.0)
        assert decision.reason == "round 1 is over: host-b is gone"

    def test_one_that_asks_again_ends_the_round_for_those_that_have_finished(self) -> None:
        nodes = [finished("a"), finished("b", Phase.LEFT), node("c", round_=1, why="x")]
        decision = decide(seen(complete("abc"), nodes), RULES, 0.0)
        assert decision.reason == "round 1 is over: host-c: x"

    def test_when_all_have_finished_and_left_others_may_come(self) -> None:
        nodes = [finished("a", Phase.LEFT), finished("b", Phase.LEFT), node("c")]
        decision = decide(seen(complete("ab"), nodes), RULES, 0.0)
        assert decision.reason == "round 1 is over: all have finished and left"
        again = decide(seen(forming("ab"), [*nodes, node("d")], enough_since=0.0), RULES, 10.0)
        assert members(again) == "cd"

    def test_a_node_that_left_is_not_waited_for_and_one_that_finished_is(self) -> None:
        """RV-8."""
        nodes = [node("a", round_=1), finished("b", Phase.LEFT), finished("c")]
        short = decide(seen(forming("abc"), nodes), RULES, 0.0)
        assert short.reason == "have 1 of 2: waiting for 1 more (host-c)"
        assert short.progress.missing == ("host-c",)

    def test_a_node_that_left_after_an_earlier_round_does_not_count(self) -> None:
        nodes = [working("a"), working("b"), finished("z", Phase.LEFT), node("c")]
        decision = decide(seen(complete("ab"), nodes), RULES, 0.0)
        assert decision.progress.waiting == 1
        assert decision.reason == "round 1 is complete with ab; 1 waiting"


def test_a_closed_run_stays_closed() -> None:
    """RV-4."""
    closed = RoundRecord(3, Status.CLOSED, "the job is done")
    decision = decide(seen(closed, [node(name) for name in "abcd"]), RULES, 1e6)
    assert (decision.record, decision.wake_at) == (None, None)
    assert decision.reason == "the run is closed: the job is done"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_nodes": 0}, "nodes 0:4: must be MIN:MAX with 1 <= MIN <= MAX"),
        ({"min_nodes": 5}, "nodes 5:4: must be MIN:MAX with 1 <= MIN <= MAX"),
        ({"join_s": -1}, "join_s -1: must not be negative"),
        ({"last_call_s": -0.1}, "last_call_s -0.1: must not be negative"),
        ({"linger_s": float("nan")}, "linger_s nan: must not be negative"),
        ({"keep_alive_s": 0}, "keep-alive every 0 s for a lease of 15 s"),
        ({"keep_alive_s": 15}, "keep-alive every 15 s for a lease of 15 s"),
        ({"lease_s": float("nan")}, "keep-alive every 5 s for a lease of nan s"),
        ({"lease_s": 1e6}, "keep-alive every 5 s for a lease of 1e\\+06 s"),
    ],
)
def test_odd_rules_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        replace(RULES, **change)


# Any situation at all.

NAMES = [NodeId(f"n{number}") for number in range(8)]
NODE = st.builds(
    node,
    st.sampled_from(NAMES),
    st.sampled_from(Phase),
    st.integers(0, 4),
    st.none() | st.integers(0, 5),
)
NODES = st.lists(NODE, max_size=8, unique_by=lambda node: node.node)
RECORD = st.builds(
    lambda number, status, names: RoundRecord(
        number, status, "why", size=len(names), roll=f"{number}/{' '.join(names)}"
    ),
    st.integers(1, 4),
    st.sampled_from(Status),
    st.lists(st.sampled_from(NAMES), max_size=6, unique=True),
)
TIMES = st.floats(0, 200)


@settings(max_examples=1000)
@given(RECORD, NODES, TIMES, st.none() | TIMES, TIMES, st.integers(1, 4), st.integers(0, 3))
def test_every_decision_keeps_the_guarantees(
    record: RoundRecord,
    nodes: list[Announcement],
    since: float,
    enough: float | None,
    now: float,
    least: int,
    more: int,
) -> None:
    rules = Rules(min_nodes=least, max_nodes=least + more, join_s=100, last_call_s=10)
    decision = decide(seen(record, nodes, since, enough), rules, now)
    assert decision.reason  # RV-6
    assert decision.wake_at is None or decision.wake_at > now
    assert type(decision.progress).decode(decision.progress.encode()) == decision.progress
    new = decision.record
    if new is None:
        return
    assert RoundRecord.decode(new.encode()) == new
    assert record.status is not Status.CLOSED  # RV-4
    assert new.status is not Status.CLOSED
    if record.status is Status.COMPLETE:  # RV-1, RV-3
        assert (new.status, new.number) == (Status.FORMING, record.number + 1)
    else:
        assert (new.status, new.number) == (Status.COMPLETE, record.number)
        assert rules.min_nodes <= new.size == len(decision.members) <= rules.max_nodes  # RV-2
        ready = {node.node for node in nodes if node.phase is Phase.WAITING}
        assert {member.node for member in decision.members} <= ready
