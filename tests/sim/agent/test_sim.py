"""The run of a simulated job, its bounds, and its command line. The seeds are run in tests/sim."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from holdfast.agent.machine import AgentMachine, Terms
from holdfast.agent.policy import RestartBudget
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.model import Status
from holdfast.testing.faultplan import Crash, FaultPlan
from tests.sim.agent import sim
from tests.sim.agent.nodes import AgentUser
from tests.sim.agent.sim import AgentCluster, AgentPlan, draw_plan, main, run_seed
from tests.sim.agent.workers import AgentBehaviour
from tests.sim.rendezvous.nodes import NodePlan

TERMS = Terms(budget=RestartBudget(1), grace_s=1.0, exit_barrier_s=30.0)
CALM = FaultPlan(delay_s=0.0, calm_at=0.0)
BEHAVIOUR = AgentBehaviour(
    until=10.0, stop_s=0.0, failures=0.0, terms=TERMS, workers=(2, 1, 1), work_s=(3.0, 6.0)
)
PLAN = AgentPlan(
    CALM,
    tuple(NodePlan(f"n{one}", 0.0, None, 0.0, 1.0) for one in range(3)),
    Rules(min_nodes=2, max_nodes=3, join_s=8.0, last_call_s=0.3, keep_alive_s=1.0, lease_s=3.0),
    BEHAVIOUR,
    (),
    None,
)


def ran(plan: AgentPlan) -> tuple[Counter[str], list[str]]:
    cluster = AgentCluster(1, plan)
    cluster.run()
    assert cluster.users() == []
    return cluster.judge.counts, cluster.journal.failures


def test_a_calm_job_succeeds_on_every_node() -> None:
    counts, broken = ran(PLAN)
    assert broken == []
    assert (counts["succeeded"], counts["rounds"], counts["attempts"]) == (3, 1, 3)


def test_a_job_without_an_end_is_ended_by_signals() -> None:
    counts, broken = ran(replace(PLAN, behaviour=replace(BEHAVIOUR, work_s=None)))
    assert (counts["signalled"], broken) == (3, [])


def test_a_job_that_fails_each_time_uses_its_budget_and_no_more() -> None:
    counts, broken = ran(replace(PLAN, behaviour=replace(BEHAVIOUR, failures=1.0, until=60.0)))
    assert broken == []
    assert (counts["failures counted"], counts["rounds"], counts["failed"]) == (2, 2, 3)
    assert counts["causes judged"] == 3


@pytest.mark.parametrize(
    ("changes", "how"),
    [({"stuck": 1.0}, "broken"), ({"cannot_start": 1.0}, "broken"), ({"slow": 1.0}, "failed")],
)
def test_workers_misbehave(changes: dict[str, float], how: str) -> None:
    behaviour = replace(BEHAVIOUR, failures=1.0, until=60.0, **changes)  # type: ignore[arg-type]
    counts, broken = ran(replace(PLAN, behaviour=behaviour))
    assert broken == []
    assert counts[how]


def test_nodes_die_and_are_signalled() -> None:
    faults = FaultPlan(incidents=(Crash(2.0, "n0"),), calm_at=4.0)
    behaviour = replace(BEHAVIOUR, work_s=(8.0, 9.0))
    counts, broken = ran(replace(PLAN, faults=faults, behaviour=behaviour))
    assert (counts["rounds"], counts["succeeded"], broken) == (2, 2, [])
    counts, broken = ran(replace(PLAN, signals=((1.5, "n1"),), behaviour=behaviour))
    assert (counts["signalled"], counts["succeeded"], broken) == (1, 2, [])


def test_a_node_that_counts_a_failure_may_die_at_that_moment() -> None:
    behaviour = replace(
        BEHAVIOUR, failures=1.0, until=60.0, terms=replace(TERMS, budget=RestartBudget(0))
    )
    faults = FaultPlan(delay_s=0.0, calm_at=20.0)
    counts, broken = ran(replace(PLAN, faults=faults, behaviour=behaviour, targeted_crash=1))
    assert broken == []
    assert (counts["targeted_crashes"], counts["attempts"]) == (1, 3)  # none was started again


def test_of_agents_that_are_all_killed_nothing_is_asked() -> None:
    """L4: the run is closed, and the agents die before one of them could say so."""
    terms = replace(TERMS, budget=RestartBudget(0))
    behaviour = replace(BEHAVIOUR, failures=1.0, until=60.0, slow=1.0, terms=terms)
    cluster = AgentCluster(1, replace(PLAN, behaviour=behaviour))
    while (record := cluster.judge.record) is None or record.status is not Status.CLOSED:
        assert cluster.sim.now < 30.0
        cluster.sim.run(cluster.sim.now + 0.05)
    for node in PLAN.nodes:
        cluster.network.schedule(Crash(cluster.sim.now, node.name))
    cluster.run()
    assert (cluster.judge.outcomes, cluster.journal.failures) == ({}, [])


def test_an_agent_that_ends_without_a_word_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """L4."""
    monkeypatch.setattr(AgentUser, "_finish_all", lambda self, outcome: self.leave())
    cluster = AgentCluster(1, PLAN)
    cluster.run()
    assert "does not say how it ended" in cluster.journal.failures[0]


@pytest.mark.parametrize(("patience_s", "blamed"), [(1.0, 0), (-6.0, 2)])
def test_a_failure_on_a_node_that_leaves_is_told_when_it_has_left(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, blamed: int
) -> None:
    """E9: within the grace of its workers (4 s here), and not later."""
    monkeypatch.setattr(sim, "TOLD_WITHIN_S", patience_s)
    behaviour = replace(BEHAVIOUR, work_s=None, terms=replace(TERMS, grace_s=4.0))
    cluster = AgentCluster(1, replace(PLAN, behaviour=behaviour))
    cluster.judge.calm_since = 0.0
    cluster.sim.run(2.0)
    user = cluster.users()[0]
    assert user.workers is not None
    user.workers._slow = {1}  # it ends when its grace is over
    user.signal()
    user.workers._raise(0)
    cluster.run()
    assert len([one for one in cluster.journal.failures if "E9" in one]) == blamed


def test_what_does_not_come_in_time_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentMachine, "met", lambda self, number, trouble, now: None)
    cluster = AgentCluster(1, PLAN)
    cluster.run()
    assert "L4: not within" in cluster.journal.failures[0]


def test_an_exception_of_a_machine_is_found_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: AgentMachine) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(AgentMachine, "start", start)
    assert "RuntimeError: a bug" in run_seed(1).failures[0]


def test_plans_have_every_number_of_nodes_and_signals_and_deaths() -> None:
    plans = [draw_plan(seed) for seed in range(200)]
    assert {len(plan.nodes) for plan in plans} == {2, 3, 4, 5, 6}
    assert any("a signal to" in str(plan) for plan in plans)
    assert any("dies" in str(plan) for plan in plans)


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1"]) == 0
    assert "0 broken promises" in capsys.readouterr().out
