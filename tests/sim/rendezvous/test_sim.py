"""The run of a cluster's plan, its bounds, and its command line. The seeds are run in tests/sim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.model import Status
from holdfast.testing.faultplan import Crash, FaultPlan
from tests.sim.rendezvous.nodes import Behaviour, NodePlan
from tests.sim.rendezvous.sim import (
    Cluster,
    ClusterPlan,
    Ending,
    TargetedCrash,
    count_operations,
    draw_plan,
    main,
    run_seed,
)

RULES = Rules(min_nodes=2, max_nodes=3, join_s=8.0, last_call_s=0.3, keep_alive_s=1.0, lease_s=3.0)
PLAN = ClusterPlan(
    FaultPlan(calm_at=6.0),
    tuple(NodePlan(f"n{one}", 0.1 * one, None, 0.0, 1.0) for one in range(3)),
    RULES,
    Behaviour(until=6.0, stop_s=0.2, failures=0.0),
    (),
    Ending.CLOSE,
)


def ran(plan: ClusterPlan) -> Cluster:
    cluster = Cluster(1, plan)
    cluster.run()
    return cluster


@pytest.mark.parametrize("ending", Ending)
def test_a_calm_run_keeps_every_promise_to_its_end(ending: Ending) -> None:
    cluster = ran(replace(PLAN, ending=ending))
    assert cluster.journal.failures == []
    assert cluster.programs() == []
    closed = cluster.judge.record is not None and cluster.judge.record.status is Status.CLOSED
    assert closed == (ending is Ending.CLOSE)


def test_too_few_nodes_after_the_faults_give_up() -> None:
    crashes = tuple(Crash(3.0, name) for name in ("n0", "n1"))
    cluster = ran(replace(PLAN, faults=FaultPlan(incidents=crashes, calm_at=6.0)))
    assert cluster.journal.failures == []
    assert cluster.judge.counts["joins timed out"] == 1


def test_a_leader_is_struck_when_it_publishes() -> None:
    stops = ran(replace(PLAN, targeted_crashes=(TargetedCrash(2, 5.0, dies=False),)))
    dies = ran(
        replace(
            PLAN,
            targeted_crashes=(TargetedCrash(1, 2.0, dies=True), TargetedCrash(99, 1.0, dies=True)),
        )
    )
    for cluster in (stops, dies):
        assert cluster.journal.failures == []
        assert cluster.judge.counts["targeted_crashes"] == 1
        assert cluster.judge.counts["leaderships"] >= 2


def test_a_promise_that_is_not_kept_in_time_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeMachine, "ask", lambda self, why, now: None)
    (text,) = ran(PLAN).journal.failures
    assert "L1: not within" in text


def test_an_end_of_the_wrong_kind_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeMachine, "leave", lambda self, now: None)
    failures = ran(PLAN).journal.failures
    assert any("L3: should have left" in text for text in failures)


def test_what_a_machine_raises_is_reported_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(self: NodeMachine, changes: object, now: float) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(NodeMachine, "changed", changed)
    report = run_seed(4)
    assert "ZeroDivisionError" in report.failures[-1]
    assert "--seed 4" in str(report)


def test_a_plan_shows_all_that_it_decides() -> None:
    plan = draw_plan(11)
    text = str(plan)
    for part in (
        plan.rules,
        plan.behaviour,
        *plan.nodes,
        *plan.targeted_crashes,
        *plan.faults.incidents,
    ):
        assert str(part) in text


def test_operations_are_counted_for_the_leader_and_the_others() -> None:
    leader, others = count_operations(5)
    assert len(others) == 4
    assert 0 < max(others) < leader


def test_one_seed_prints_its_trace_and_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "6"]) == 0
    out = capsys.readouterr().out
    assert "0 broken promises" in out
    assert str(draw_plan(6).faults).split("\n")[0] in out
    assert "RoundReady" in out


def test_many_seeds_print_their_start_and_their_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "60", "--start", "1000", "--processes", "1"]) == 0
    out = capsys.readouterr().out
    assert "cluster simulation: 60 seeds from 1000\n" in out
    assert "0 of 60 seeds broke a promise" in out
