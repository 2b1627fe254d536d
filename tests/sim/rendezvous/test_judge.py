"""The judge of a cluster: what it blames, and what it does not. Its nodes are in tests/sim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdfast.ids import NodeId, RunId
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.effects import Closed, Counted, Left, RoundOver, RoundReady, TimedOut
from holdfast.rendezvous.model import (
    Announcement,
    Failures,
    Keys,
    Leader,
    Member,
    MemberRank,
    Page,
    Phase,
    RoundRecord,
    Status,
)
from holdfast.store.ops import Add, AnyOp, Change, CompareSet, DeletePrefix, Guarded, MultiSet
from tests.sim.rendezvous.judge import Judge

KEYS = Keys(RunId("sim"))
A, B, C = map(NodeId, "abc")
LEAD = Leader(A, 0).encode()


def write_roll(judge: Judge, record: RoundRecord, nodes: Sequence[NodeId]) -> RoundRecord:
    """Write the roll of a round that is complete with these nodes; return the record with it."""
    forming = record.status is Status.FORMING
    if not nodes:
        return record
    roll = f"{record.number - forming}/{''.join(nodes)}"
    members = tuple(Member(node, node, node, 1) for node in nodes)
    record = replace(record, size=len(nodes), roll=roll)
    if forming:
        return record
    judge.changed(Change(KEYS.page(roll, 0), Page(members).encode(), 1))
    for rank, node in enumerate(nodes):
        judge.changed(Change(KEYS.place(roll, node), MemberRank(rank).encode(), 1))
    return replace(record, address=nodes[0], port=1)


class Court:
    """A judge, and what it has blamed."""

    def __init__(self) -> None:
        self.blamed: list[str] = []
        self.now = 0.0
        rules = Rules(min_nodes=1, max_nodes=2, join_s=10.0)
        self.judge = Judge(KEYS, rules, self.blamed.append, lambda: self.now)

    def set(self, key: str, value: bytes | None) -> None:
        self.judge.changed(Change(key, value, 1))

    def announce(self, *nodes: NodeId, phase: Phase = Phase.WAITING) -> None:
        for node in nodes:
            said = Announcement(node, node, node, 1, phase, 0, None, "")
            self.set(KEYS.node(node), said.encode())

    def leave(self, node: NodeId, number: int) -> None:
        """Let a node leave for good, after this round."""
        said = Announcement(node, node, node, 1, Phase.LEFT, number, None, "")
        self.set(KEYS.node(node), said.encode())

    def publish(
        self, number: int, status: Status, *nodes: NodeId, reason: str = "so", failures: int = 0
    ) -> RoundRecord:
        record = write_roll(self.judge, RoundRecord(number, status, reason), nodes)
        record = replace(record, failures=failures)
        self.set(KEYS.round, record.encode())
        return record

    def meet(self, *nodes: NodeId) -> RoundRecord:
        """Let the first round be complete, and tell its members."""
        self.announce(*nodes)
        record = self.publish(1, Status.COMPLETE, *nodes)
        for rank, node in enumerate(nodes):
            self.judge.told(node, RoundReady(record, rank))
        return record

    def text(self) -> str:
        return "\n".join(self.blamed)


@pytest.fixture
def court() -> Court:
    return Court()


def test_a_good_run_is_not_blamed(court: Court) -> None:
    record = court.meet(A, B)
    assert court.judge.all_in([A, B])
    court.judge.performed(Guarded(KEYS.round, record.encode(), Add(KEYS.of_round(1) + "x", 1)))
    court.set(KEYS.failures, Failures(1, 1, (5.0,)).encode())
    court.judge.told(A, Counted(1, Failures(1, 1, (5.0,))))
    court.judge.asks(A, 1)
    court.judge.rests(A)
    court.publish(2, Status.FORMING, A, B)
    court.judge.told(B, RoundOver(1, "so"))
    court.publish(2, Status.COMPLETE, A, B, failures=1)
    court.set(KEYS.node(B), None)
    court.publish(3, Status.FORMING, A, B)
    court.judge.closes()
    court.publish(3, Status.CLOSED)
    court.judge.told(A, Closed("so", False))
    court.judge.told(B, Left())
    court.judge.told(A, TimedOut("so"))
    assert court.blamed == []
    assert court.judge.counts["rounds"] == 2


@pytest.mark.parametrize(
    ("number", "status", "nodes", "promise"),
    [
        (1, Status.COMPLETE, (A, B), "S3: after"),
        (1, Status.FORMING, (A,), "S3: after"),
        (3, Status.FORMING, (A,), "S3: after"),
        (2, Status.FORMING, (A,), "S5: round 1 ended without an event"),
        (1, Status.CLOSED, (), "S4: nobody closed the run"),
    ],
)
def test_a_wrong_step_is_blamed(
    court: Court, number: int, status: Status, nodes: tuple[NodeId, ...], promise: str
) -> None:
    court.meet(A)
    court.publish(number, status, *nodes)
    assert promise in court.text()


def test_one_event_ends_one_round(court: Court) -> None:
    court.meet(A, B)
    court.set(KEYS.node(B), None)
    court.publish(2, Status.FORMING, A, B)
    court.publish(2, Status.COMPLETE, A, B)
    assert court.blamed == []
    court.publish(3, Status.FORMING, A, B)
    assert "S5" in court.text()


def test_nothing_follows_the_end(court: Court) -> None:
    court.meet(A)
    court.judge.closes()
    court.publish(1, Status.CLOSED)
    court.publish(2, Status.FORMING)
    court.set(KEYS.round, None)
    assert "the run was closed, and goes on" in court.text()
    assert "the round was deleted" in court.text()


@pytest.mark.parametrize("nodes", [(), (A, B, C)])
def test_too_few_and_too_many_members_are_blamed(court: Court, nodes: tuple[NodeId, ...]) -> None:
    court.publish(1, Status.COMPLETE, *nodes)
    assert "S2" in court.text()


def test_a_record_without_a_reason_is_blamed(court: Court) -> None:
    court.publish(1, Status.COMPLETE, A, reason="")
    assert "RV-6" in court.text()


def test_a_node_that_stays_keeps_its_rank_and_its_place(court: Court) -> None:
    court.meet(A, B)
    court.set(KEYS.node(B), None)
    court.publish(2, Status.FORMING, A, B)
    court.publish(2, Status.COMPLETE, C, A)
    assert "rank 0 of round 1 is another in round 2" in court.text()
    court.announce(C)
    court.set(KEYS.node(C), None)
    court.publish(3, Status.FORMING, C, A)
    court.publish(3, Status.COMPLETE, B)
    assert "S5: ['a'] stayed and lost their places" in court.text()


def test_a_member_that_never_comes_back_may_lose_its_place(court: Court) -> None:
    court.meet(A, B)
    court.judge.asks(A, 1)
    court.publish(2, Status.FORMING, A, B)
    court.now = 10.0
    court.publish(2, Status.COMPLETE, A)
    assert court.blamed == []


def test_a_write_of_another_round_is_blamed(court: Court) -> None:
    record = court.meet(A)
    court.judge.performed(Guarded(KEYS.round, b"older", Add(KEYS.of_round(1) + "x", 1)))
    assert "is not as it was" in court.text()
    court.judge.performed(Guarded(KEYS.round, record.encode(), Add(KEYS.of_round(2) + "x", 1)))
    assert "was written in" in court.text()


def test_only_a_leader_publishes_and_any_node_closes(court: Court) -> None:
    closed = RoundRecord(1, Status.CLOSED, "so").encode()
    court.judge.performed(CompareSet(KEYS.round, None, closed))
    assert court.blamed == []
    forming = RoundRecord(2, Status.FORMING, "so").encode()
    court.judge.performed(CompareSet(KEYS.round, None, forming))
    assert "ND-2" in court.text()


@pytest.mark.parametrize(
    "failures",
    [
        Failures(2, 1, (5.0,)),
        Failures(1, 2, (5.0,)),
        Failures(1, 0, (5.0,)),
        Failures(1, 1, (1.0, 5.0)),
    ],
)
def test_a_wrong_count_is_blamed(court: Court, failures: Failures) -> None:
    court.meet(A)
    court.set(KEYS.failures, failures.encode())
    assert "S6" in court.text()


def test_a_round_is_counted_once(court: Court) -> None:
    court.meet(A)
    court.set(KEYS.failures, Failures(1, 1, (5.0,)).encode())
    court.set(KEYS.failures, Failures(2, 1, (5.0, 6.0)).encode())
    assert "S6" in court.text()


def test_a_round_that_does_not_know_of_a_failure_is_blamed(court: Court) -> None:
    court.meet(A)
    court.set(KEYS.failures, Failures(1, 1, (5.0,)).encode())
    court.judge.asks(A, 1)
    court.publish(2, Status.FORMING, A)
    court.publish(2, Status.COMPLETE, A)
    assert "S7: 1 rounds had a failure before" in court.text()


def test_a_count_that_did_not_happen_is_blamed(court: Court) -> None:
    court.meet(A)
    court.judge.told(A, Counted(1, Failures()))
    assert "S6: the failure of round 1 at a is not counted" in court.text()


def test_an_answer_to_a_report_of_an_earlier_round_says_nothing_of_this_one(court: Court) -> None:
    court.meet(A)
    court.judge.told(A, Counted(0, Failures()))
    assert court.blamed == []


def test_a_node_that_is_told_of_a_round_is_in_it_and_in_no_other(court: Court) -> None:
    record = court.meet(A)
    court.judge.told(B, RoundReady(record, 0))
    assert "S1: b is told" in court.text()
    court.judge.told(A, RoundReady(record, 0))
    assert "ND-1: a works in 1" in court.text()
    court.judge.told(A, RoundOver(7, "so"))
    assert "ND-1: a does not work in round 7" in court.text()


def test_a_node_without_a_lease_learns_that_its_round_is_over(court: Court) -> None:
    court.meet(A)
    court.judge.lost_lease(A, [RoundOver(1, "so")])
    court.judge.lost_lease(B, [])
    assert court.blamed == []
    court.judge.lost_lease(A, [])
    assert "ND-3" in court.text()


def test_the_end_is_told_only_when_it_has_come(court: Court) -> None:
    court.meet(A)
    court.set(KEYS.leader, Leader(B, 0).encode())
    court.judge.told(A, Closed("so", False))
    court.judge.told(A, Left())
    court.judge.told(B, Left())
    assert [text.split()[0] for text in court.blamed] == ["a", "a", "b"]


def test_a_node_that_finished_and_left_is_a_member_and_ends_nothing(court: Court) -> None:
    court.meet(A, B)
    court.set(KEYS.leader, Leader(B, 0).encode())
    court.judge.finishes(B, 1)
    court.leave(B, 1)
    court.judge.told(B, Left())  # it need not hear that its lease is revoked
    court.announce(C)
    assert court.judge.all_in([A, C])  # C would have a place, in a round that is not ending
    assert court.judge.stands([A])
    assert not court.judge.stands([C])
    assert court.judge.members() == {A, B}
    assert court.blamed == []
    court.publish(2, Status.FORMING, A, B)
    assert "S5: round 1 ended without an event" in court.text()
    assert not court.judge.stands([A])


def test_a_round_that_all_have_left_is_over(court: Court) -> None:
    court.meet(A, B)
    for node in (A, B):
        court.judge.finishes(node, 1)
        court.leave(node, 1)
    assert not court.judge.all_in([])
    court.publish(2, Status.FORMING, A, B)
    assert court.blamed == []


def test_a_node_that_has_finished_and_lives_is_in(court: Court) -> None:
    court.meet(A)
    court.judge.finishes(A, 1)
    court.announce(A, phase=Phase.FINISHED)
    court.announce(C)
    assert court.judge.all_in([A, C])
    assert not court.judge.all_in([C])


def test_a_node_that_has_not_finished_has_not_left_for_good(court: Court) -> None:
    court.meet(A)
    court.leave(A, 1)
    assert "S8: a has not finished round 1, and has left it" in court.text()


def test_all_are_in_when_those_outside_have_no_place(court: Court) -> None:
    assert not court.judge.all_in([])
    court.meet(A, B)
    assert not court.judge.all_in([A])
    court.announce(C, phase=Phase.WORKING)
    assert not court.judge.all_in([A, B, C])
    court.announce(C)
    assert court.judge.all_in([A, B, C])


def test_a_node_that_waits_beside_a_free_place_is_not_in(court: Court) -> None:
    court.meet(A)
    court.announce(B)
    assert not court.judge.all_in([A, B])


# The roll of a round.


def test_a_record_that_names_a_roll_with_a_page_missing(court: Court) -> None:  # RM-2
    record = RoundRecord(1, Status.COMPLETE, "so", size=1, roll="1/a", address="a", port=1)
    court.set(KEYS.round, record.encode())
    assert "RM-2" in court.text()


def test_a_place_that_is_not_the_rank(court: Court) -> None:  # RM-2
    record = write_roll(court.judge, RoundRecord(1, Status.COMPLETE, "so"), (A, B))
    court.set(KEYS.place(record.roll, B), MemberRank(0).encode())
    court.set(KEYS.round, record.encode())
    assert "RM-2" in court.text()


def test_a_master_that_is_not_the_first_member(court: Court) -> None:  # RM-2
    record = write_roll(court.judge, RoundRecord(1, Status.COMPLETE, "so"), (A, B))
    court.set(KEYS.round, replace(record, port=2).encode())
    assert "RM-2" in court.text()


def test_a_page_that_any_node_may_write(court: Court) -> None:  # RM-2
    op = MultiSet(((KEYS.page("1/a", 0), b""),))
    court.set(KEYS.leader, Leader(A, 0).encode())
    court.judge.performed(Guarded(KEYS.leader, Leader(A, 0).encode(), op))
    assert not court.blamed
    court.judge.performed(op)
    assert "RM-2" in court.text()


def test_a_roll_that_changes_when_a_record_names_it(court: Court) -> None:  # RM-3
    record = court.meet(A, B)
    court.set(KEYS.place(record.roll, A), MemberRank(0).encode())  # as it is
    assert not court.blamed
    court.set(KEYS.place(record.roll, C), MemberRank(2).encode())
    assert "RM-3" in court.text()


def test_what_a_round_that_is_not_old_has_left_is_removed(court: Court) -> None:  # RM-5
    court.set(KEYS.leader, LEAD)
    record = court.meet(A, B)
    for number in (2, 3):
        court.judge.asks(A, number - 1)
        court.publish(number, Status.FORMING, A, B)
        court.publish(number, Status.COMPLETE, A, B)
    assert not court.blamed
    court.judge.performed(Guarded(KEYS.leader, LEAD, DeletePrefix(KEYS.rolls + "1/")))
    court.set(KEYS.place(record.roll, A), None)
    assert not court.blamed
    wrong: list[AnyOp] = [
        DeletePrefix(KEYS.rolls + "1/"),
        Guarded(KEYS.leader, LEAD, DeletePrefix(KEYS.rolls + "2/")),
        Guarded(KEYS.leader, LEAD, DeletePrefix(KEYS.rolls)),
    ]
    for op in wrong:
        court.judge.performed(op)
        assert "RM-5" in court.blamed.pop()


def test_a_next_round_that_forgets_the_last_ones_members(court: Court) -> None:  # RM-4
    court.meet(A, B)
    court.judge.asks(A, 1)
    court.set(KEYS.round, RoundRecord(2, Status.FORMING, "so").encode())
    assert "RM-4" in court.text()
