"""How an agent's work ended: one value, from which results, errors and exit codes are made.

And what is said of a failure where there is room for a line.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from signal import Signals
from typing import Any

from holdfast.agent.rules import STALL
from holdfast.errors import HoldfastError, Stopped
from holdfast.process.outcome.failure import Failure, hint_for
from holdfast.records import dataclass

__all__ = [
    "Ending",
    "Outcome",
    "broken",
    "closed_as",
    "gist",
    "name_cause",
    "sentence",
    "signalled_by",
    "stopped_by",
]


class Ending(StrEnum):
    """The ways in which it can end."""

    SUCCEEDED = "succeeded"
    """This node's workers ended well in the last round."""
    FAILED = "failed"
    """Workers of the job failed, and no restart was left."""
    SIGNALLED = "signalled"
    """A signal told this agent to stop; the job may go on without it."""
    STOPPED = "stopped"
    """A user stopped the whole job: `error` says which."""
    NOT_NEEDED = "not needed"
    """The job ended well without this node: while it waited for a place, or had begun anew."""
    BROKEN = "broken"
    """The agent itself, its store or its rendezvous failed: `error` says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it ended, and why.

    `failures` are those of the last round, of all nodes as far as they are known here, the first
    cause first. An agent that broke, was signalled or stopped has those that it was handling then.
    `results` are what functions returned, by rank; empty for anything but a success.
    """

    ending: Ending
    reason: str
    failures: tuple[Failure, ...] = ()
    signal: int | None = None
    error: HoldfastError | None = None
    results: dict[int, Any] = field(default_factory=dict)


def broken(error: HoldfastError) -> Outcome:
    """Return the end of an agent that cannot go on."""
    return Outcome(ending=Ending.BROKEN, reason=str(error), error=error)


def closed_as(reason: str, *, failed: bool) -> Outcome:
    """Return the end of an agent whose run another node closed."""
    return Outcome(ending=Ending.FAILED if failed else Ending.NOT_NEEDED, reason=reason)


def signalled_by(number: Signals, failures: tuple[Failure, ...]) -> Outcome:
    """Return the end of an agent that this signal stopped while these failures were handled."""
    why = f"stopped by {number.name}{f', after {sentence(failures[0])}' if failures else ''}"
    return Outcome(ending=Ending.SIGNALLED, reason=why, failures=failures, signal=int(number))


def stopped_by(user: str, failures: tuple[Failure, ...]) -> Outcome:
    """Return the end of a job that a user stopped while these failures were handled."""
    why = f"stopped by {user}"
    error = Stopped(why, by=user)
    return Outcome(ending=Ending.STOPPED, reason=why, failures=failures, error=error)


def gist(failure: Failure) -> str:
    """Return in one line what is known of a failure beside how the process ended; may be empty."""
    if not failure.has_words:
        guessed = failure.hint == hint_for(failure.exit)
        return "" if guessed else failure.hint
    lines = [line.strip() for line in failure.message.splitlines() if line.strip()]
    # What was raised may begin on the line after its type.
    told = 2 if lines and lines[0].endswith(":") else 1
    return " ".join(lines[:told])


def sentence(failure: Failure) -> str:
    """Return in one line which worker failed, how its process ended, and what is known of it."""
    known = gist(failure)
    what = f": {known}" if known else ""
    if failure.kind == STALL:
        return f"rank {failure.rank} on {failure.host} stalled{what}"
    return f"rank {failure.rank} on {failure.host} failed ({failure.exit}){what}"


def name_cause(failure: Failure) -> str:
    """Return a failure in a few words: the rank, and what was raised or how the process ended."""
    raised = failure.kind or failure.error_type.rpartition(".")[2]
    return f"rank {failure.rank}: {raised or failure.exit}"
