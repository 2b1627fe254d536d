"""Machines in a simulation whose steps are recorded, and run again when it is over.

A `Recorded` stands for a machine. Calls of the methods that are inputs go through a recorder, as
those of the product's shells do; everything else is the machine's own.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from holdfast.agent import inputs as agent
from holdfast.agent.story import AGENT_STORY
from holdfast.observe.recorder import Recorder
from holdfast.observe.replay import Replayable, read, write
from holdfast.process.spec import GroupEnded
from holdfast.rendezvous import inputs as node
from holdfast.rendezvous.story import NODE_STORY

__all__ = ["AGENT_INPUTS", "NODE_INPUTS", "Inputs", "Recorded", "of_agent", "of_node", "replays"]

Inputs = dict[str, Callable[..., Any]]

AGENT_INPUTS: Inputs = {
    "start": agent.AgentBegins,
    "held": agent.Held,
    "joined": agent.Joined,
    "join_failed": agent.JoinFailed,
    "start_failed": agent.StartFailed,
    "worker_exited": lambda told: told,
    "stalled": agent.WorkersStalled,
    "group_ended": lambda abandoned: GroupEnded(tuple(abandoned)),
    "counted": agent.FailureCounted,
    "count_failed": agent.CountFailed,
    "peer_told": agent.PeerTold,
    "round_over": agent.SawRoundOver,
    "newcomers": agent.SawNewcomers,
    "run_ended": agent.SawRunEnded,
    "signalled": agent.SignalCame,
    "stop_asked": agent.StopAsked,
    "met": agent.BarrierOver,
    "broke": agent.Broke,
    "tick": agent.AgentTick,
}
NODE_INPUTS: Inputs = {
    "start": node.NodeBegins,
    "ask": node.AskRound,
    "withdraw": node.WithdrawWish,
    "finish": node.FinishRound,
    "count_failure": node.ReportFailure,
    "close": node.CloseRun,
    "leave": node.LeaveRun,
    "changed": lambda changes: node.KeysChanged(tuple(changes)),
    "done": node.OpDone,
    "failed": node.OpFailed,
    "tick": node.NodeTick,
}


class Recorded:
    """A machine whose inputs are recorded; `steps_max` of them are kept."""

    def __init__(self, story: Replayable, inputs: Inputs, machine: Any, steps_max: int) -> None:
        self.story = story
        self.recorder: Recorder[Any, Any] = Recorder(story.kind, machine, steps_max=steps_max)
        self._machine = machine
        self._inputs = inputs
        self._wanted: list[Any] = []
        self._now = 0.0

    def take_effects(self) -> list[Any]:
        """Return what the machine wants."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._machine, name)
        if name not in self._inputs:
            return found

        def step(*args: Any, **kwargs: Any) -> None:
            bound = inspect.signature(found).bind(*args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
            self._now = given.pop("now", self._now)
            event = self._inputs[name](*given.values())
            self._wanted += self.recorder.step(event, self._now)

        return step


def of_agent(machine: Any, steps_max: int) -> Recorded:
    """Record an agent's machine."""
    return Recorded(AGENT_STORY, AGENT_INPUTS, machine, steps_max)


def of_node(machine: Any, steps_max: int) -> Recorded:
    """Record a node's machine."""
    return Recorded(NODE_STORY, NODE_INPUTS, machine, steps_max)


def replays(machine: Recorded) -> int:
    """Run the recorded steps again, through a file; return how many, all decided as they were."""
    written = write(machine.recorder.recording(), machine.story, version="", code="")
    found = read(json.loads(json.dumps(written)), (machine.story,))
    steps = list(found.replay())
    assert [step for step in steps if step.recorded is not None] == []
    assert len(steps) == len(found.steps)
    return len(steps)
