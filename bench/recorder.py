"""What recording the steps of a machine costs, for each step; both ways take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.table import number, render
from holdfast.agent.effects import Place
from holdfast.agent.inputs import (
    AGENT,
    AgentBegins,
    AgentTick,
    FailureCounted,
    Held,
    Joined,
)
from holdfast.agent.machine import AgentMachine, Terms
from holdfast.agent.policy import RestartBudget
from holdfast.ids import LeaseId, NodeId, RunId
from holdfast.observe.recorder import MachineKind, Recorder, run_step
from holdfast.process.outcome.failure import Failure, WorkerExited
from holdfast.process.spec import Exit, GroupEnded
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.effects import LeaseHeld
from holdfast.rendezvous.inputs import NODE, AskRound, KeysChanged, NodeBegins, OpDone
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.model import Announcement, Keys, Phase
from holdfast.store.ops import Change, Entry, Lease, Swap

__all__ = ["recorder"]

KEYS = Keys(RunId("bench"))
Step = Callable[[Any, float], Any]
Make = Callable[[MachineKind[Any], Any], Step]


def recorder(rounds: int, repeats: int) -> tuple[str, object]:
    """Measure steps of an agent and of leaders of 1 to 1000 nodes, without and with a recorder."""
    cases: dict[str, Callable[[Make], float]] = {
        "agent: a restart, each of 6 steps": partial(_restarts, repeats),
        "agent: a turn that finds nothing new": partial(_idle, repeats),
    }
    for nodes in (1, 100, 1000):
        label = f"leader of {nodes} nodes: one announces itself"
        cases[label] = partial(_announced, repeats, nodes)
    rows, data = [], {}
    for label, case in cases.items():
        taken: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(rounds):
            for recorded, figures in taken.items():
                figures.append(case(_stepper(recorded)))
        plain, with_recorder = (statistics.median(taken[key]) * 1e6 for key in (False, True))
        data[label] = {"without": plain, "with": with_recorder}
        rows.append([label, number(plain), number(with_recorder)])
    head = ["", "without a recorder, µs", "with one, µs"]
    return render("a step of a machine", head, rows), data


def _stepper(recorded: bool) -> Make:
    def make(kind: MachineKind[Any], machine: Any) -> Step:
        if recorded:
            recorder: Recorder[Any, Any] = Recorder(kind, machine)
            return recorder.step
        return lambda event, now: run_step(kind, machine, event, now)

    return make


def _agent(make: Make) -> Step:
    step = make(AGENT, AgentMachine(Terms(budget=RestartBudget(1 << 30))))
    step(AgentBegins(), 0.0)
    return step


def _restarts(repeats: int, make: Make) -> float:
    """Return the seconds of a step, over many restarts of a node with two workers."""
    step = _agent(make)
    failure = Failure(
        rank=0,
        local_rank=0,
        role="default",
        host="node-a",
        pid=100,
        exit=Exit(1),
        at=5.0,
        message="ValueError: a mistake",
        traceback="x" * 2000,
    )
    began = time.perf_counter()
    for number_ in range(1, repeats + 1):
        step(Joined(Place(number_, 0, 1, 2, number_ - 1)), 1.0)
        step(WorkerExited(0, 100, Exit(1), failure, False), 2.0)
        step(FailureCounted(number_, (), 5.0), 2.0)
        step(WorkerExited(1, 101, Exit(-15), None, True), 2.0)
        step(GroupEnded(), 2.0)
        step(AgentTick(), 2.0)
    return (time.perf_counter() - began) / repeats / 6


def _idle(repeats: int, make: Make) -> float:
    """Return the seconds of a turn of an agent whose workers run."""
    step = _agent(make)
    step(Joined(Place(1, 0, 1, 2, 0)), 1.0)
    held = LeaseHeld(100.0, 110.0)
    step(Held(held), 1.0)
    began = time.perf_counter()
    for _ in range(repeats):
        step(Held(held), 2.0)
        step(AgentTick(), 2.0)
    return (time.perf_counter() - began) / repeats


def _announcement(number_: int, why: str = "") -> Announcement:
    name = f"node-{number_}"
    return Announcement(NodeId(name), name, "10.0.0.1", 1, Phase.WAITING, 0, None, why)


def _announced(repeats: int, nodes: int, make: Make) -> float:
    """Return the seconds of a step of a leader that waits for more nodes than there are."""
    machine = NodeMachine(_announcement(0), KEYS, Rules(min_nodes=nodes + 9, max_nodes=nodes + 9))
    step, revision = make(NODE, machine), 10
    step(NodeBegins(), 0.0)
    step(AskRound(""), 0.0)
    step(OpDone(Lease(LeaseId(1), 15.0)), 0.0)
    announced = machine._presence.next_op(machine._me, LeaseId(1))
    step(OpDone(Swap(True, getattr(announced, "desired", None), 1)), 0.0)
    step(OpDone(Swap(True, machine._leader().encode(), 2)), 0.0)
    there = [_announcement(one) for one in range(1, nodes)]
    entries = [Entry(KEYS.node(one.node), one.encode(), 3) for one in there]
    step(OpDone(tuple(entries)), 0.0)
    assert machine.leading
    changes = [_announcement(1, f"for the {one}th time").encode() for one in range(repeats)]
    began = time.perf_counter()
    for value in changes:
        revision += 1
        step(KeysChanged((Change(KEYS.node(NodeId("node-1")), value, revision),)), 1.0)
    return (time.perf_counter() - began) / repeats
