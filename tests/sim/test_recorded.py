"""The steps of all machines in faulty clusters are decided again as they were (OB-5, OB-8).

However few of them are kept: rings of two steps begin at a copy of the state at any moment.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.agent.machine import AgentMachine
from holdfast.agent.story import AGENT_STORY
from holdfast.observe.replay import Replayable
from holdfast.rendezvous import roll
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.story import NODE_STORY
from tests.sim.agent import nodes as agent_nodes
from tests.sim.agent import sim as agent_sim
from tests.sim.recorded import (
    AGENT_INPUTS,
    NODE_INPUTS,
    Inputs,
    Recorded,
    of_agent,
    of_node,
    replays,
)
from tests.sim.rendezvous import nodes
from tests.sim.rendezvous import sim as cluster_sim

SEEDS = 8
Make = Callable[[Any, int], Recorded]


def recording(made: list[Recorded], real: type, wrap: Make, steps_max: int) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Recorded:
        made.append(wrap(real(*args, **kwargs), steps_max))
        return made[-1]

    return make


@pytest.mark.parametrize("steps_max", [2, 7, 100_000])
@pytest.mark.parametrize("sim", [agent_sim, cluster_sim], ids=["agents", "nodes"])
def test_every_step_is_decided_again_as_it_was(
    monkeypatch: pytest.MonkeyPatch, sim: Any, steps_max: int
) -> None:
    monkeypatch.setattr(roll, "PAGE_MEMBERS", cluster_sim.PAGE_MEMBERS)  # also when it is replayed
    made: list[Recorded] = []
    nodes_made = recording(made, NodeMachine, of_node, steps_max)
    agents_made = recording(made, AgentMachine, of_agent, steps_max)
    monkeypatch.setattr(nodes, "NodeMachine", nodes_made)
    monkeypatch.setattr(agent_nodes, "Machine", agents_made)
    plain = [sim.run_seed(seed) for seed in range(SEEDS)]
    assert [report.failures for report in plain] == [[]] * SEEDS
    steps = {"rendezvous": 0} | ({"agent": 0} if sim is agent_sim else {})
    for machine in made:
        taken = machine.recorder.recording()
        assert len(taken.steps) <= steps_max
        assert (taken.dropped == 0) >= (steps_max == 100_000)
        steps[taken.machine] += replays(machine)
    assert min(steps.values()) > 10, steps


@pytest.mark.parametrize(
    ("inputs", "story"), [(AGENT_INPUTS, AGENT_STORY), (NODE_INPUTS, NODE_STORY)]
)
def test_no_input_goes_past_the_recorder(inputs: Inputs, story: Replayable) -> None:
    """Every method that is given `now`, or tells what happened, is an input."""
    machine = story.kind.parts[0]
    asked = {"next_wake", "take_effects", "op_limit_s"}  # these change nothing
    methods = {name for name, one in vars(machine).items() if inspect.isfunction(one)}
    assert {name for name in methods - asked if not name.startswith("_")} == set(inputs)
    assert len(inputs) == len(story.inputs)
