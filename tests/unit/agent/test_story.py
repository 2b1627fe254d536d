"""An agent's steps in words."""

from __future__ import annotations

from signal import Signals

import pytest

from holdfast.agent.effects import (
    Close,
    CountFailure,
    Effect,
    Finish,
    Join,
    Meet,
    Publish,
    Remember,
    StartWorkers,
    Stop,
)
from holdfast.agent.inputs import (
    AgentBegins,
    AgentInput,
    AgentTick,
    BarrierOver,
    Broke,
    CountFailed,
    FailureCounted,
    Held,
    Joined,
    JoinFailed,
    PeerTold,
    SawNewcomers,
    SawRoundOver,
    SawRunEnded,
    SignalCame,
    StartFailed,
    StopAsked,
    WorkersStalled,
)
from holdfast.agent.outcome import Ending, Outcome
from holdfast.agent.story import AGENT_STORY, tell_effect, tell_input
from holdfast.errors import StoreUnavailable
from holdfast.process.spec import GroupEnded
from holdfast.rendezvous.effects import LeaseHeld
from tests.unit.agent.stories import ended_well, failed, failure, place

ERROR = StoreUnavailable("no store")

INPUTS: list[tuple[AgentInput, str]] = [
    (AgentBegins(), "the agent begins"),
    (Held(None), "the place in the round is held: for ever"),
    (Held(LeaseHeld(1, 2.5)), "the place in the round is held: stop at 1.00, kill at 2.50"),
    (Joined(place(3)), "joined round 3, as node 0 of 2, 2 workers"),
    (JoinFailed(ERROR), "no round: no store"),
    (StartFailed(ERROR), "the workers cannot be started: no store"),
    (ended_well(1), "worker 1 (pid 101) ended: exit code 0"),
    (failed(failure(1)), "worker 1 (pid 101) ended: exit code 1, a failure at 10.000"),
    (GroupEnded(), "all workers have ended"),
    (GroupEnded((7, 8)), "all workers have ended, but KILL did not end 7 8"),
    (FailureCounted(2, (), 0.0), "the job's failures: 2"),
    (CountFailed(ERROR), "the failure cannot be counted: no store"),
    (
        PeerTold(1, 2, (failure(4), failure(5)), False),
        "node 2 of round 1 tells its failures: 4 5",
    ),
    (PeerTold(1, 2, (), True), "node 2 of round 1 tells its failures: none, and these are all"),
    (SawRoundOver("b is gone"), "the round is over: b is gone"),
    (SawNewcomers(1), "nodes that wait to come in: 1"),
    (SawRunEnded("all is done", False), "the run is closed as done: all is done"),
    (SawRunEnded("no restart", True), "the run is closed as failed: no restart"),
    (SignalCame(Signals.SIGTERM), "signal SIGTERM"),
    (WorkersStalled(failure(1)), "the workers make no progress: rank 1 at step -1"),
    (StopAsked("user a", None), "user a stops the job"),
    (StopAsked("user a", 2.5), "user a stops the job within 2.5 s"),
    (BarrierOver(1, None), "the exit barrier of round 1 is over"),
    (BarrierOver(1, "late"), "the exit barrier of round 1 is over: late"),
    (Broke(ERROR), "the agent cannot go on: no store"),
    (AgentTick(), "time passes"),
]


@pytest.mark.parametrize(("event", "told"), INPUTS)
def test_inputs(event: AgentInput, told: str) -> None:
    assert tell_input(event) == told


def test_every_input_is_told() -> None:
    assert {type(event) for event, _ in INPUTS} == set(AGENT_STORY.inputs)


EFFECTS: list[tuple[Effect, str]] = [
    (Join(""), "asks for a round"),
    (Join("b is gone"), "asks for a round, because b is gone"),
    (
        StartWorkers(place(2, failures=1)),
        "starts workers in round 2, as node 0 of 2, after 1 failures",
    ),
    (Stop(Signals.SIGTERM, 30.0, "over"), "stops its workers by SIGTERM within 30 s: over"),
    (Publish((failure(3),), True), "tells the other nodes its failures: 3, and these are all"),
    (CountFailure(), "counts the failure"),
    (Remember(2, "boom at step 1"), "keeps what failure 2 was: boom at step 1"),
    (Meet(300.0), "waits for the other nodes to be done"),
    (Close("all is done", False), "closes the run as done: all is done"),
    (Finish(Outcome(ending=Ending.SUCCEEDED, reason="done")), "ends: succeeded: done"),
    (
        Finish(Outcome(ending=Ending.FAILED, reason="spent", failures=(failure(2),))),
        "ends: failed: spent [2]",
    ),
]


@pytest.mark.parametrize(("effect", "told"), EFFECTS)
def test_effects(effect: Effect, told: str) -> None:
    assert tell_effect(effect) == told
    codec = AGENT_STORY.codec
    assert codec.encode(codec.decode(codec.encode(effect))) == codec.encode(effect)
