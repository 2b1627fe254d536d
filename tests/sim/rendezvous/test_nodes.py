"""Nodes of a simulated cluster at the edges: clocks, trouble, their own end."""

from __future__ import annotations

import pytest

from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.model import Status
from holdfast.testing.faultplan import Crash, FaultPlan, Incident, Partition
from tests.sim.rendezvous.nodes import Behaviour, NodePlan, NodeProgram
from tests.sim.rendezvous.sim import Cluster, ClusterPlan, Ending
from tests.sim.store.actors import SERVER


def cluster(
    *incidents: Incident,
    nodes: int = 2,
    max_nodes: int = 2,
    failures: float = 0.0,
    rate: float = 1.0,
) -> Cluster:
    """Make a small cluster whose nodes work for a minute."""
    rules = Rules(
        min_nodes=1,
        max_nodes=max_nodes,
        join_s=30.0,
        last_call_s=0.5,
        keep_alive_s=1.0,
        lease_s=3.0,
    )
    plans = tuple(NodePlan(f"n{one}", 0.0, None, 1000.0 * one, rate) for one in range(nodes))
    behaviour = Behaviour(until=60.0, stop_s=0.2, failures=failures)
    faults = FaultPlan(incidents=incidents)
    return Cluster(7, ClusterPlan(faults, plans, rules, behaviour, (), Ending.LEAVE))


def node(world: Cluster, name: str = "n0") -> NodeProgram:
    program = world.network.hosts[name].program
    assert isinstance(program, NodeProgram)
    return program


def test_nodes_meet_work_and_write() -> None:
    world = cluster()
    world.sim.run(10.0)
    assert world.judge.all_in([program.id for program in world.programs()])
    assert world.judge.counts["writes of rounds"] > 5
    assert world.journal.failures == []


def test_a_slow_clock_makes_slow_renewals() -> None:
    normal, slow = cluster(), cluster(rate=0.5)
    for world in (normal, slow):
        world.sim.run(20.0)
    assert node(slow).ops < node(normal).ops
    assert node(slow, "n1").local() == 1000.0 + 10.0


def test_a_failure_is_counted_and_leads_to_a_new_round() -> None:
    world = cluster(failures=1.0)
    world.sim.run(15.0)
    assert world.judge.counts["failures counted"] >= 1
    assert len(world.judge.rounds) > world.judge.counts["failures counted"]
    assert world.journal.failures == []


def test_a_newcomer_is_let_in() -> None:
    world = cluster(Crash(3.0, "n1", 8.0))
    world.sim.run(7.0)
    assert len(world.judge.rounds) == 2
    world.sim.run(14.0)
    assert len(world.judge.rounds) == 3
    assert world.judge.all_in([program.id for program in world.programs()])


def test_a_late_write_is_refused() -> None:
    world = cluster(*(Crash(at, "n1", at + 2.0) for at in (5.0, 12.0, 19.0, 26.0)))
    world.sim.run(40.0)
    assert world.judge.counts["late writes refused"] >= 1
    assert world.journal.failures == []


def test_a_node_that_leaves_is_gone_and_closes_nothing() -> None:
    world = cluster()
    world.sim.run(5.0)
    node(world, "n1").agent.leave()
    node(world, "n1").agent.leave()
    world.sim.run(6.0)
    assert node(world, "n1").agent.ended == "left"
    assert "left" in str(node(world, "n1").agent)
    assert len(world.judge.announced) == 1
    assert world.judge.record is not None
    assert world.judge.record.status is not Status.CLOSED


def test_a_node_cut_off_from_the_store_ends() -> None:
    world = cluster(Partition(5.0, 1000.0, "n1", SERVER))
    world.sim.run(60.0)
    assert node(world, "n1").agent.ended == "lost"
    assert node(world, "n1").agent.last_reason
    assert len(world.programs()) == 1


def test_a_watch_that_never_begins_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    world = cluster()
    world.sim.run(5.0)
    program = node(world)
    world.network.schedule(Partition(5.0, 1000.0, "n0", SERVER))
    world.sim.run(5.1)
    program._follow(world.judge.keys.root)
    world.sim.run(30.0)
    assert program.agent.last_reason == "the store cannot be watched"


def test_a_machine_that_wants_to_be_woken_for_nothing_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NodeMachine, "next_wake", lambda self: 0.0)
    world = cluster(nodes=1)
    world.sim.run(5.0)
    assert any("would spin" in text for text in world.journal.failures)
    assert world.programs() == []


def test_the_host_of_the_store_goes_last() -> None:
    world = cluster()
    world.sim.run(5.0)
    ended: list[float] = []
    agents = [node(world, name).agent for name in ("n0", "n1")]
    agents[0].hosts_until = lambda: ended.append(world.sim.now)
    agents[0].leave()
    world.sim.run(9.0)
    assert not ended
    agents[1].leave()
    world.sim.run(10.0)
    assert [agent.ended for agent in agents] == ["left", "left"]
    assert len(ended) == 1
