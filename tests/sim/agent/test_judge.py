"""The judge of a job: what it blames, and what it does not. Its agents are in tests/sim."""

from __future__ import annotations

import json

import pytest

from holdfast.agent.effects import Place
from holdfast.agent.exchange import decode_report
from holdfast.agent.outcome import Ending, Outcome
from holdfast.errors import HoldfastError, RendezvousClosed, RendezvousTimedOut
from holdfast.ids import LeaseId, NodeId, RunId
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.model import (
    Announcement,
    Failures,
    Keys,
    Phase,
    RoundRecord,
    Status,
)
from holdfast.store.ops import Change, CompareSet, LeaseKeep
from tests.sim.agent.judge import LATE_S, NOT_IN_TIME, AgentJudge
from tests.sim.rendezvous.test_judge import write_roll
from tests.unit.agent.stories import failure

KEYS = Keys(RunId("sim"))
A, B = map(NodeId, "ab")


class Court:
    """A judge of a job of two nodes that may be restarted once, and what it has blamed."""

    def __init__(self) -> None:
        self.blamed: list[str] = []
        self.now = 10.0
        rules = Rules(min_nodes=1, max_nodes=2, join_s=10.0)
        self.judge = AgentJudge(KEYS, rules, self.blamed.append, lambda: self.now, max_restarts=1)
        for node in (A, B):
            self.set(KEYS.node(node), Announcement(node, node, node, 1, Phase.WAITING, 0, None, ""))
        self.round(1)

    def set(self, key: str, value: Announcement | RoundRecord | Failures | bytes | None) -> None:
        plain = value if value is None or isinstance(value, bytes) else value.encode()
        self.judge.changed(Change(key, plain, 1))

    def round(self, number: int, failures: int = 0) -> None:
        record = RoundRecord(number, Status.COMPLETE, "so it is", failures=failures)
        self.set(KEYS.round, write_roll(self.judge, record, (A, B)))
        for rank, node in enumerate((A, B)):
            self.judge.started(node, Place(number, rank, 2, 1, failures), 1, 2)

    def over(self, number: int) -> None:
        self.judge.asks(A, number)
        for node in (A, B):
            self.judge.workers_died(node, 1)
        record = RoundRecord(number + 1, Status.FORMING, "over")
        self.set(KEYS.round, write_roll(self.judge, record, (A, B)))

    def count(self, *rounds: int) -> None:
        known = Failures()
        for number in rounds:
            known = known.plus(number, 1.0)
        self.set(KEYS.failures, known)

    def report(self, number: int, *, final: bool = False) -> None:
        told = {"final": final, "failures": [failure().to_json(11.0)]}
        data = json.dumps(told).encode()
        assert decode_report(data, 0.0)[1] == final
        self.set(f"{KEYS.board}{number}/failed/0", data)

    def end(self, ending: Ending, reason: str = "", error: HoldfastError | None = None) -> None:
        self.judge.agent_ended(A, 1, Outcome(ending=ending, reason=reason, error=error))


@pytest.fixture
def court() -> Court:
    return Court()


def test_workers_beside_others(court: Court) -> None:
    court.judge.started(A, Place(1, 0, 2, 1, 0), 1, 2)
    assert "AG-1: a starts workers beside 1 others" in court.blamed[0]


def test_a_round_that_ends_needs_an_event(court: Court) -> None:
    court.now += LATE_S
    court.over(1)
    assert court.blamed == ["S5: nothing happened in round 1: over"]


def test_a_failure_a_departure_and_a_newcomer_are_events(court: Court) -> None:
    court.judge.worker_failed(A, 1, 0, 10.0)
    court.over(1)
    court.round(2)
    court.set(KEYS.node(B), None)
    court.over(2)
    court.round(3)
    court.set(
        KEYS.node(NodeId("c")), Announcement(NodeId("c"), "c", "c", 1, Phase.WAITING, 0, None, "")
    )
    court.over(3)
    assert court.blamed == []


def test_a_round_that_begins_with_a_member_that_is_gone_ends_by_that(court: Court) -> None:
    """Its leader was cut off; an earlier round has used the event up."""
    court.set(KEYS.node(B), None)
    court.over(1)
    court.now += LATE_S
    court.round(2)
    court.over(2)
    assert court.blamed == []


def test_a_failure_is_told_after_it_was_counted(court: Court) -> None:
    court.report(1, final=True)
    court.count(1)
    court.report(1)
    assert court.blamed == []
    court.judge.worker_failed(A, 1, 0, 10.0)
    court.over(1)
    court.round(2, failures=1)
    court.report(2)
    assert court.blamed == ["S6: a failure of round 2 is told before it is counted"]


def test_an_overdrawn_account(court: Court) -> None:
    for number in (1, 2, 3):
        court.judge.worker_failed(A, number, 0, 10.0)
        court.count(*range(1, number + 1))
        court.over(number)
        court.round(number + 1, failures=number)
    text = "\n".join(court.blamed)
    assert "S6: 3 failures, 1 may be restarted" in text
    assert "S6: a starts workers after 2 failures" in text


def test_which_nodes_may_close_the_run(court: Court) -> None:
    court.judge.closing(1, "too many", failed=True)
    court.judge.closing(1, "done", failed=False)
    assert [one[:10] for one in court.blamed] == ["S4: closed", "S4: closed"]
    court.judge.worker_done(1)
    court.judge.worker_done(1)
    court.judge.closing(1, "done", failed=False)
    court.judge.start_failures = 1
    court.judge.closing(1, "cannot start", failed=True)
    assert len(court.blamed) == 2


@pytest.mark.parametrize("ending", [Ending.SUCCEEDED, Ending.NOT_NEEDED, Ending.SIGNALLED])
def test_an_end_without_its_reason(court: Court, ending: Ending) -> None:
    court.end(ending)
    assert len(court.blamed) == 1
    court.judge.worker_done(1)
    court.judge.worker_done(1)
    court.judge.signalled.add(A)
    court.end(ending)
    assert len(court.blamed) == 1


def test_having_waited_for_long_enough_excuses_a_success(court: Court) -> None:
    court.end(Ending.SUCCEEDED, f"finished; the exit barrier: {NOT_IN_TIME}")
    assert court.blamed == []
    court.end(Ending.SUCCEEDED, "finished; the exit barrier: no store")
    assert len(court.blamed) == 1


def test_a_broken_end(court: Court) -> None:
    court.end(Ending.BROKEN, error=RendezvousTimedOut("too few"))
    assert court.blamed == []
    court.end(Ending.BROKEN, error=RendezvousClosed("done"))
    assert len(court.blamed) == 1


def test_a_job_is_given_up_for_what_happened_first(court: Court) -> None:
    court.judge.worker_failed(B, 1, 1, 9.5)
    court.judge.worker_failed(A, 1, 0, 9.0)
    court.end(Ending.FAILED)
    assert "S6: given up after 0 failures" in court.blamed[0]
    court.judge.calm_since = 8.0
    court.judge.max_restarts = -1
    court.end(Ending.FAILED)
    assert "P4: a names [], the order was [(9.0, 0), (9.5, 1)] in round 1" in court.blamed[1]
    told = Outcome(ending=Ending.FAILED, reason="", failures=(failure(0), failure(1)))
    court.judge.agent_ended(A, 1, told)
    court.judge.signalled.add(A)  # so that it did not wait for what the others know
    court.end(Ending.FAILED)
    assert len(court.blamed) == 2


# Workers of an earlier round beside those of the next (AG-10).


def test_a_node_whose_lease_the_network_ends_may_work_until_it_can_know(court: Court) -> None:
    judge, lease = court.judge, LeaseId(7)
    judge.curtailed(lease)  # of something that is no node
    assert not judge.may_work_on(B)
    judge.performed(CompareSet(KEYS.node(B), None, b"", lease))
    judge.curtailed(lease)
    assert judge.may_work_on(B)
    assert not judge.may_work_on(A)
    court.now += judge.rules.lease_s + judge.rules.stop_s
    assert not judge.may_work_on(B)


def test_a_node_that_came_back_in_time_keeps_its_lease(court: Court) -> None:
    judge, lease = court.judge, LeaseId(7)
    judge.performed(CompareSet(KEYS.node(B), None, b"", lease))
    judge.curtailed(lease)
    judge.performed(LeaseKeep(LeaseId(8)))
    assert judge.may_work_on(B)
    judge.performed(LeaseKeep(lease))
    assert not judge.may_work_on(B)


@pytest.mark.parametrize("waits", [True, False])
def test_a_node_may_work_that_a_leader_could_not_wait_for(court: Court, waits: bool) -> None:
    judge = court.judge
    court.over(1)
    court.now += judge.rules.grace_s if waits else 0.9 * judge.rules.grace_s
    record = RoundRecord(2, Status.COMPLETE, "without b")
    court.set(KEYS.round, write_roll(court.judge, record, (A,)))
    assert judge.may_work_on(B) is waits
    assert not judge.may_work_on(A)
    court.set(KEYS.node(B), None)  # its lease has ended, so it must have stopped
    assert not judge.may_work_on(B)
