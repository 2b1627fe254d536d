"""An agent's steps in words: what happened to it, and what it did about that.

And what it takes to write its steps, read them and run them again (`AGENT_STORY`).
"""

from __future__ import annotations

from collections.abc import Iterable
from signal import Signals
from typing import assert_never

from holdfast.agent.effects import (
    Close,
    CountFailure,
    Effect,
    Finish,
    Join,
    Meet,
    Place,
    Publish,
    Remember,
    StartWorkers,
    Stop,
)
from holdfast.agent.inputs import (
    AGENT,
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
from holdfast.agent.policy import RestartBudget
from holdfast.agent.rules import RestartBackoff, RestartRules
from holdfast.agent.terms import State, Terms
from holdfast.observe.replay import Replayable
from holdfast.process.outcome.failure import Failure, WorkerExited
from holdfast.process.spec import Exit, GroupEnded
from holdfast.rendezvous.effects import LeaseHeld

__all__ = ["AGENT_STORY", "tell_effect", "tell_input"]


def tell_input(event: AgentInput) -> str:
    """Say what happened to an agent."""
    match event:
        case AgentBegins():
            return "the agent begins"
        case Held(held):
            until = (
                f"stop at {held.stop_at:.2f}, kill at {held.kill_at:.2f}" if held else "for ever"
            )
            return f"the place in the round is held: {until}"
        case Joined(place):
            return f"joined {_where(place)}, {place.workers} workers"
        case JoinFailed(error):
            return f"no round: {error}"
        case StartFailed(error):
            return f"the workers cannot be started: {error}"
        case WorkerExited(local_rank, pid, exit_, failure):
            how = "" if failure is None else f", a failure at {failure.when:.3f}"
            return f"worker {local_rank} (pid {pid}) ended: {exit_}{how}"
        case GroupEnded(abandoned):
            left = f", but KILL did not end {_listed(abandoned)}" if abandoned else ""
            return f"all workers have ended{left}"
        case WorkersStalled(failure):
            return f"the workers make no progress: rank {failure.rank} at step {failure.step}"
        case FailureCounted(count):
            return f"the job's failures: {count}"
        case CountFailed(error):
            return f"the failure cannot be counted: {error}"
        case PeerTold(number, node, failures, final):
            return f"node {node} of round {number} tells its failures: {_ranks(failures, final)}"
        case SawRoundOver(reason):
            return f"the round is over: {reason}"
        case SawNewcomers(number):
            return f"nodes that wait to come in: {number}"
        case SawRunEnded(reason, failed):
            return f"the run is closed as {_how(failed)}: {reason}"
        case SignalCame(number):
            return f"signal {number.name}"
        case StopAsked(by, grace_s):
            grace = "" if grace_s is None else f" within {grace_s:g} s"
            return f"{by} stops the job{grace}"
        case BarrierOver(number, trouble):
            return f"the exit barrier of round {number} is over{f': {trouble}' if trouble else ''}"
        case Broke(error):
            return f"the agent cannot go on: {error}"
        case AgentTick():
            return "time passes"
        case _:
            assert_never(event)


def tell_effect(effect: Effect) -> str:
    """Say what an agent does."""
    match effect:
        case Join(why):
            return f"asks for a round{f', because {why}' if why else ''}"
        case StartWorkers(place):
            return f"starts workers in {_where(place)}, after {place.failures} failures"
        case Stop(number, grace_s, why):
            return f"stops its workers by {number.name} within {grace_s:g} s: {why}"
        case Publish(failures, final):
            return f"tells the other nodes its failures: {_ranks(failures, final)}"
        case CountFailure():
            return "counts the failure"
        case Remember(number, description):
            return f"keeps what failure {number} was: {description}"
        case Meet():
            return "waits for the other nodes to be done"
        case Close(reason, failed):
            return f"closes the run as {_how(failed)}: {reason}"
        case Finish(outcome):
            ranks = " ".join(str(one.rank) for one in outcome.failures)
            return f"ends: {outcome.ending}: {outcome.reason}{f' [{ranks}]' if ranks else ''}"
        case _:
            assert_never(effect)


def _where(place: Place) -> str:
    return f"round {place.round}, as node {place.node} of {place.nodes}"


def _how(failed: bool) -> str:
    return "failed" if failed else "done"


def _ranks(failures: Iterable[Failure], final: bool) -> str:
    ranks = _listed(one.rank for one in failures) or "none"
    return f"{ranks}{', and these are all' if final else ''}"


def _listed(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


AGENT_STORY = Replayable(
    kind=AGENT,
    inputs=(
        *(AgentBegins, Held, Joined, JoinFailed, StartFailed, WorkerExited, GroupEnded),
        WorkersStalled,
        *(FailureCounted, CountFailed, PeerTold, SawRoundOver, SawNewcomers, SawRunEnded),
        *(SignalCame, StopAsked, BarrierOver, Broke, AgentTick),
    ),
    values=(
        *(Join, StartWorkers, Stop, Publish, CountFailure, Remember, Meet, Close, Finish),
        *(Place, LeaseHeld, Failure, Exit, Outcome, Ending, State, Terms, RestartBudget, Signals),
        *(RestartRules, RestartBackoff),
    ),
    modules=(
        "holdfast.agent.machine",
        "holdfast.agent.course",
        "holdfast.agent.known",
        "holdfast.agent.inputs",
        "holdfast.agent.effects",
        "holdfast.agent.policy",
        "holdfast.agent.rules",
        "holdfast.agent.terms",
        "holdfast.agent.outcome",
        "holdfast.process.outcome.failure",
    ),
    tell_input=tell_input,
    tell_effect=tell_effect,
)
