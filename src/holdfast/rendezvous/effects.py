"""What a node's machine wants done, and what it tells: one closed union."""

from __future__ import annotations

from typing import TypeAlias

from holdfast.records import dataclass
from holdfast.rendezvous.model import Failures, Progress, RoundRecord
from holdfast.store.ops import AnyOp

__all__ = [
    "Closed",
    "Counted",
    "Effect",
    "Explained",
    "Follow",
    "LeaseHeld",
    "Left",
    "Notice",
    "Perform",
    "RoundOver",
    "RoundReady",
    "StoreLost",
    "TimedOut",
    "disagreement",
]


@dataclass(frozen=True, slots=True)
class Perform:
    """Perform this store operation, then call `done` or `failed`."""

    op: AnyOp


@dataclass(frozen=True, slots=True)
class Follow:
    """Watch all keys under this prefix from now on, instead of what was watched before."""

    prefix: str


@dataclass(frozen=True, slots=True)
class RoundReady:
    """A round is complete and this node is in it, with this rank."""

    record: RoundRecord
    rank: int


@dataclass(frozen=True, slots=True)
class RoundOver:
    """The round that this node works in is over."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Explained:
    """Why this node waits, when that has changed."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Counted:
    """The failure of this round that this node reported is counted, or another one of it was.

    Or the round was over before that: it counts no more.
    """

    number: int
    failures: Failures


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """This node's lease was granted or renewed: until when its place in a round is its own.

    Moments of the node's monotonic clock. Work must begin to stop at `stop_at` and be killed at
    `kill_at` unless a later `LeaseHeld` has moved them: soon after, the lease may have ended
    elsewhere.
    """

    stop_at: float
    kill_at: float


@dataclass(frozen=True, slots=True)
class TimedOut:
    """No round came in time; the node has withdrawn."""

    reason: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The run is closed, as a failure or not, since `ended_at` (seconds since 1970).

    `late` says that this was so before this node announced itself.
    """

    reason: str
    failed: bool
    ended_at: float = 0.0
    late: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """The node has left the run; if it had not finished, nothing of it is in the store."""


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The store cannot be used any more, or not by this node; the machine has stopped.

    `usage` says that the node was told something that does not fit the run.
    """

    reason: str
    usage: bool = False


Notice: TypeAlias = (
    RoundReady | RoundOver | Explained | Counted | LeaseHeld | TimedOut | Closed | Left | StoreLost
)
Effect: TypeAlias = Perform | Follow | Notice


def disagreement(own: str, theirs: str) -> str:
    """Say that nodes of one run were told to expect different numbers of nodes."""
    return (
        f"nodes disagree: this one was started with {own} nodes, the one that leads with "
        f"{theirs:.40}; start all nodes with the same --nnodes"
    )
