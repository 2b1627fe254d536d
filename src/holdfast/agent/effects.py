"""What the agent's machine wants done: one closed union."""

from __future__ import annotations

from signal import Signals
from typing import TypeAlias

from holdfast.agent.outcome import Outcome
from holdfast.process.outcome.failure import Failure
from holdfast.records import dataclass

__all__ = [
    "Close",
    "CountFailure",
    "Effect",
    "Finish",
    "Join",
    "Meet",
    "Place",
    "Publish",
    "Remember",
    "StartWorkers",
    "Stop",
]


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a round: which round, which of its nodes we are, and how many there are.

    `failures` is how many failures of the job were counted before this round.
    """

    round: int
    node: int
    nodes: int
    workers: int
    failures: int


@dataclass(frozen=True, slots=True)
class Join:
    """Ask for the next round; then call `joined` or `join_failed`.

    `cause` is `why` in a few words, where it is a worker's failure.
    """

    why: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start the workers of this place; then call `start_failed` if that cannot be done."""

    place: Place


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the workers: this signal first, KILL after the grace; `group_ended` tells the end."""

    signal: Signals
    grace_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell the other nodes of the round which of our workers have failed, and when.

    `final` says that there will be no more of them.
    """

    failures: tuple[Failure, ...]
    final: bool


@dataclass(frozen=True, slots=True)
class CountFailure:
    """Count a failure of this round in the job's account; then call `counted`.

    `compared` is how many descriptions of earlier failures it is to be told with.
    """

    compared: int = 0


@dataclass(frozen=True, slots=True)
class Remember:
    """Keep in the store what the failure of this number was, for the judgement of later ones."""

    number: int
    description: str


@dataclass(frozen=True, slots=True)
class Meet:
    """Our workers are done: say so, and wait in the exit barrier; then call `met`."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Close:
    """End the run for every node."""

    reason: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """Leave the run: this is the end. Nothing is wanted after it."""

    outcome: Outcome


Effect: TypeAlias = (
    Join | StartWorkers | Stop | Publish | CountFailure | Remember | Meet | Close | Finish
)
