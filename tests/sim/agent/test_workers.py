"""Played workers. How agents fare with them is judged in tests/sim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.agent.machine import State
from tests.sim.agent.sim import AgentCluster
from tests.sim.agent.test_sim import BEHAVIOUR, PLAN


def seconds_to_stop(**changes: Any) -> float:
    """Return how long the workers of a node need to end after a signal."""
    behaviour = replace(BEHAVIOUR, work_s=None, **changes)
    cluster = AgentCluster(1, replace(PLAN, behaviour=behaviour))
    cluster.sim.run(2.0)
    user = cluster.users()[0]
    assert user.machine.state is State.RUNNING
    user.signal()
    while user.outcome is None:
        cluster.sim.run(cluster.sim.now + 0.1)
    return cluster.sim.now - 2.0


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [({}, 0.0, 0.5), ({"slow": 1.0}, 1.0, 1.2), ({"stuck": 1.0}, 6.0, 6.2)],
)
def test_workers_end_when_they_are_told_killed_or_given_up(
    changes: dict[str, float], least: float, most: float
) -> None:
    assert least <= seconds_to_stop(**changes) <= most
