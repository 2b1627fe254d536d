"""What happens to an agent, as data: the inputs of its machine, one closed union.

`AGENT.give` hands one to the machine. The shell (`agent.py`) goes this way for every input, so that
each can be recorded, written to a file and run again. `WorkerExited` and `GroupEnded` are inputs,
too: they are defined where they come from, in `process`.
"""

from __future__ import annotations

from signal import Signals
from typing import TypeAlias, assert_never

from holdfast.agent.effects import Place
from holdfast.agent.known import KnownFailures
from holdfast.agent.machine import AgentMachine
from holdfast.errors import HoldfastError
from holdfast.observe.recorder import MachineKind
from holdfast.process.outcome.failure import Failure, WorkerExited
from holdfast.process.spec import GroupEnded
from holdfast.records import dataclass
from holdfast.rendezvous.effects import LeaseHeld

__all__ = [
    "AGENT",
    "AgentBegins",
    "AgentInput",
    "AgentTick",
    "BarrierOver",
    "Broke",
    "CountFailed",
    "FailureCounted",
    "Held",
    "JoinFailed",
    "Joined",
    "PeerTold",
    "SawNewcomers",
    "SawRoundOver",
    "SawRunEnded",
    "SignalCame",
    "StartFailed",
    "StopAsked",
    "WorkersStalled",
]


@dataclass(frozen=True, slots=True)
class AgentBegins:
    """The agent begins its work."""


@dataclass(frozen=True, slots=True)
class Held:
    """Until when this node's place in its round is its own; None: for ever."""

    held: LeaseHeld | None


@dataclass(frozen=True, slots=True)
class Joined:
    """A round is complete, and this node is in it."""

    place: Place


@dataclass(frozen=True, slots=True)
class JoinFailed:
    """No round will come."""

    error: HoldfastError


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The workers could not be started; nothing of them is left."""

    error: HoldfastError


@dataclass(frozen=True, slots=True)
class WorkersStalled:
    """Workers make no progress, which counts as this failure; they still run."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class FailureCounted:
    """The job has had `count` failures with ours, the newest at `times`; it is `wall` now.

    `before` describes those before ours, the newest first, as many as were asked for.
    """

    count: int
    times: tuple[float, ...]
    wall: float
    before: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CountFailed:
    """Our failure could not be counted."""

    error: HoldfastError


@dataclass(frozen=True, slots=True)
class PeerTold:
    """Another node of a round tells which of its workers have failed; `final`: these are all."""

    round: int
    node: int
    failures: tuple[Failure, ...]
    final: bool


@dataclass(frozen=True, slots=True)
class SawRoundOver:
    """The rendezvous says that the round is over."""

    reason: str


@dataclass(frozen=True, slots=True)
class SawNewcomers:
    """The rendezvous says that so many nodes wait to come in."""

    number: int


@dataclass(frozen=True, slots=True)
class SawRunEnded:
    """The rendezvous says that a node has closed the run."""

    reason: str
    failed: bool


@dataclass(frozen=True, slots=True)
class SignalCame:
    """A signal tells this agent to stop."""

    number: Signals


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A user stops the whole job; its workers have so many seconds, None for those of the job."""

    by: str
    grace_s: float | None


@dataclass(frozen=True, slots=True)
class BarrierOver:
    """The exit barrier of a round is over; `trouble` says what went wrong with it."""

    round: int
    trouble: str | None


@dataclass(frozen=True, slots=True)
class Broke:
    """The agent itself, or its store, cannot go on."""

    error: HoldfastError


@dataclass(frozen=True, slots=True)
class AgentTick:
    """Time has passed."""


AgentInput: TypeAlias = (
    AgentBegins
    | Held
    | Joined
    | JoinFailed
    | StartFailed
    | WorkerExited
    | GroupEnded
    | WorkersStalled
    | FailureCounted
    | CountFailed
    | PeerTold
    | SawRoundOver
    | SawNewcomers
    | SawRunEnded
    | SignalCame
    | StopAsked
    | BarrierOver
    | Broke
    | AgentTick
)


def _give(machine: AgentMachine, event: AgentInput, now: float) -> None:
    match event:
        case AgentBegins():
            machine.start()
        case Held(held):
            machine.held(held)
        case Joined(place):
            machine.joined(place, now)
        case JoinFailed(error):
            machine.join_failed(error, now)
        case StartFailed(error):
            machine.start_failed(error)
        case WorkerExited():
            machine.worker_exited(event, now)
        case GroupEnded(abandoned):
            machine.group_ended(abandoned, now)
        case WorkersStalled(failure):
            machine.stalled(failure)
        case FailureCounted(count, times, wall, before):
            machine.counted(count, times, wall, now, before)
        case CountFailed(error):
            machine.count_failed(error, now)
        case PeerTold(number, node, failures, final):
            machine.peer_told(number, node, failures, final, now)
        case SawRoundOver(reason):
            machine.round_over(reason, now)
        case SawNewcomers(number):
            machine.newcomers(number, now)
        case SawRunEnded(reason, failed):
            machine.run_ended(reason, failed, now)
        case SignalCame(number):
            machine.signalled(number, now)
        case StopAsked(by, grace_s):
            machine.stop_asked(by, grace_s, now)
        case BarrierOver(number, trouble):
            machine.met(number, trouble, now)
        case Broke(error):
            machine.broke(error)
        case AgentTick():
            machine.tick(now)
        case _:
            assert_never(event)


AGENT: MachineKind[AgentInput] = MachineKind(
    "agent",
    _give,
    (AgentMachine, KnownFailures),
    quiet=(Held, AgentTick, SawRoundOver, SawNewcomers, SawRunEnded),
    overtaken=(Held,),
)
