"""What can happen, as data: one frozen class for each kind of event, in a closed union.

An event repeats the `cause` of the chain that it belongs to, so "why did this happen?" is a
lookup. `str(event)` is the sentence for a person, `to_dict` the form for a machine.

A field that is declared with `repr=False` is a secret: it appears in neither. Text that a
peer chose (what a peer claims, how it broke the protocol) is shown with escapes, so that it
cannot forge lines of a log.
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum, StrEnum
from typing import ClassVar, TypeAlias

from holdfast.errors import Step
from holdfast.ids import CauseId
from holdfast.records import dataclass

__all__ = [
    "AgentSignalled",
    "AnyEvent",
    "ConnectionClosed",
    "ConnectionOpened",
    "ConnectionRefused",
    "Event",
    "JobEnded",
    "JobFailed",
    "Level",
    "RoundAwaited",
    "RoundEnded",
    "RoundFormed",
    "RunEnded",
    "ServerStarted",
    "ServerStopped",
    "StopRequested",
    "TimerExpired",
    "WorkerFailed",
    "WorkersFinished",
    "WorkersRestarting",
    "WorkersStarted",
    "WorkersStopping",
    "printable",
]

_TEXT_MAX = 300


class Level(StrEnum):
    """How much an event matters to the person who runs the job."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def printable(text: str) -> str:
    """Return text with everything that is not plain and printable escaped, and cut if long."""
    cut = text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened: at `at` seconds of this process's monotonic clock."""

    level: ClassVar[Level] = Level.INFO
    provoked: ClassVar[bool] = False
    """Whether any peer can make it happen as often as they like; sinks limit its rate then."""

    cause: CauseId
    at: float

    def to_dict(self) -> dict[str, object]:
        """Return the event as a JSON object: `event` names its kind, then its fields."""
        plain: dict[str, object] = {"event": type(self).__name__}
        for field in fields(self):
            if field.repr:
                value = getattr(self, field.name)
                plain[field.name] = _plain(value)
        return plain


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStarted(Event):
    """A server accepts connections."""

    endpoint: str

    def __str__(self) -> str:
        return f"serving {self.endpoint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStopped(Event):
    """A server has stopped listening and closed every connection."""

    endpoint: str
    reason: str

    def __str__(self) -> str:
        return f"stopped serving {self.endpoint}: {printable(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOpened(Event):
    """A peer has shown that it may come in."""

    level: ClassVar[Level] = Level.DEBUG

    peer: str

    def __str__(self) -> str:
        return f"connection from {printable(self.peer)} opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed(Event):
    """A connection that had been let in is over."""

    level: ClassVar[Level] = Level.DEBUG

    peer: str
    reason: str

    def __str__(self) -> str:
        return f"connection from {printable(self.peer)} closed: {printable(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRefused(Event):
    """A peer was turned away before it was let in; `step` says how far it came."""

    level: ClassVar[Level] = Level.WARNING
    provoked: ClassVar[bool] = True

    peer: str
    step: Step
    reason: str

    def __str__(self) -> str:
        return (
            f"connection from {printable(self.peer)} refused at {self.step}: "
            f"{printable(self.reason)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAwaited(Event):
    """A node waits for a round; `reason` says for which nodes, and it has changed."""

    run: str
    round: int
    have: int
    missing: tuple[str, ...]
    left_s: float | None
    reason: str

    def __str__(self) -> str:
        left = "" if self.left_s is None else f", {self.left_s:.1f} s left"
        return f"run {self.run}: {printable(self.reason)}{left}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFormed(Event):
    """A round is complete, and this node is in it."""

    run: str
    round: int
    rank: int
    world_size: int
    reason: str

    def __str__(self) -> str:
        place = f"rank {self.rank} of {self.world_size}"
        return f"run {self.run}: {place} in round {self.round}: {printable(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded(Event):
    """The round that this node worked in is over."""

    run: str
    round: int
    reason: str

    def __str__(self) -> str:
        return f"run {self.run}: {printable(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The run is over for this node: it was closed, its store was lost, or no round came."""

    run: str
    reason: str

    def __str__(self) -> str:
        return f"run {self.run}: {printable(self.reason)}"


def _ranks(ranks: tuple[int, ...]) -> str:
    """Name the ranks of a node's workers, which follow one another."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersStarted(Event):
    """The workers of this node run; `restarts` counts those of the job."""

    run: str
    round: int
    ranks: tuple[int, ...]
    pids: tuple[int, ...]
    world_size: int
    restarts: int

    def __str__(self) -> str:
        again = f", restart {self.restarts}" if self.restarts else ""
        return (
            f"run {self.run}: {_ranks(self.ranks)} of {self.world_size} started "
            f"in round {self.round}{again}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed(Event):
    """A worker of this node has failed; `exit_code` is minus the signal's number for a signal."""

    level: ClassVar[Level] = Level.ERROR

    run: str
    round: int
    rank: int
    local_rank: int
    role: str
    host: str
    pid: int
    exit_code: int
    reason: str

    def __str__(self) -> str:
        return (
            f"run {self.run}: rank {self.rank} ({self.role}) on {self.host}, "
            f"process {self.pid}, failed: {printable(self.reason)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersStopping(Event):
    """The workers of this node are told to end."""

    run: str
    round: int
    signal: str
    grace_s: float
    reason: str

    def __str__(self) -> str:
        return (
            f"run {self.run}: stopping workers by {self.signal}, KILL after "
            f"{self.grace_s:g} s: {printable(self.reason)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersFinished(Event):
    """All workers of this node ended well; those of other nodes may still run."""

    run: str
    round: int
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"run {self.run}: {_ranks(self.ranks)} finished in round {self.round}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersRestarting(Event):
    """The workers have ended, and this node asks for another round.

    `failures` are those of the job so far; `left` is how many restarts remain after this one, None
    where no failure of this node was the cause.
    """

    level: ClassVar[Level] = Level.WARNING

    run: str
    round: int
    failures: int
    left: int | None
    reason: str

    def __str__(self) -> str:
        return f"run {self.run}: restarting after round {self.round}: {printable(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSignalled(Event):
    """A signal told this agent to stop."""

    level: ClassVar[Level] = Level.WARNING

    run: str
    signal: str

    def __str__(self) -> str:
        return f"run {self.run}: this agent was told to stop by {self.signal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(Event):
    """A user told this agent to stop the whole job."""

    level: ClassVar[Level] = Level.WARNING

    run: str
    by: str

    def __str__(self) -> str:
        return f"run {self.run}: {printable(self.by)} stops the job"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerExpired(Event):
    """A worker did not finish in time what it had announced, and was sent a signal."""

    level: ClassVar[Level] = Level.ERROR

    pid: int
    scope: str
    late_s: float
    signal: str

    def __str__(self) -> str:
        return (
            f"process {self.pid} was sent {self.signal}: its timer '{printable(self.scope)}' "
            f"expired {self.late_s:.1f} s ago"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded(Event):
    """This agent is done, and nothing failed; `ending` says how it came to an end."""

    run: str
    ending: str
    reason: str

    def __str__(self) -> str:
        return f"run {self.run}: {self.ending}: {printable(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(Event):
    """This agent is done, because the job or the agent itself failed."""

    level: ClassVar[Level] = Level.ERROR

    run: str
    ending: str
    reason: str

    def __str__(self) -> str:
        return f"run {self.run}: {self.ending}: {printable(self.reason)}"


AnyEvent: TypeAlias = (
    ServerStarted
    | ServerStopped
    | ConnectionOpened
    | ConnectionClosed
    | ConnectionRefused
    | RoundAwaited
    | RoundFormed
    | RoundEnded
    | RunEnded
    | WorkersStarted
    | WorkerFailed
    | WorkersStopping
    | WorkersFinished
    | WorkersRestarting
    | AgentSignalled
    | StopRequested
    | TimerExpired
    | JobEnded
    | JobFailed
)
