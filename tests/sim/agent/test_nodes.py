"""An agent in a simulated cluster does what the real shell does. The seeds are run in tests/sim."""

from __future__ import annotations

from holdfast.agent.machine import State
from tests.sim.agent.sim import AgentCluster
from tests.sim.agent.test_sim import PLAN


def test_agents_join_work_and_say_how_they_are() -> None:
    cluster = AgentCluster(1, PLAN)
    cluster.sim.run(2.0)
    users = cluster.users()
    assert [user.machine.state for user in users] == [State.RUNNING] * 3
    places = [user.machine.place for user in users]
    assert sorted(place.node for place in places if place) == [0, 1, 2]
    assert "running (node " in str(users[0])
    assert [user.own_workers for user in users] == [2, 1, 1]


def test_a_signal_stops_one_agent() -> None:
    cluster = AgentCluster(1, PLAN)
    cluster.sim.run(2.0)
    cluster.users()[0].signal()
    cluster.sim.run(4.0)
    assert len(cluster.users()) == 2
    assert [str(one.ending) for one in cluster.judge.outcomes.values()] == ["signalled"]


def test_an_agent_that_has_not_begun_hears_no_signal() -> None:
    cluster = AgentCluster(1, PLAN)
    cluster.users()[0].signal()
    cluster.sim.run(2.0)
    assert len(cluster.users()) == 3
