"""Restart rules: which failures lead to a restart, and how long the job waits before it.

A cause is the name of what went wrong, as flags have it:

    1, 137          the worker's exit code
    SIGSEGV         the signal that killed it
    ValueError      the class of the exception, also with its module: torch.OutOfMemoryError
    oom             the kernel killed it: out of memory
    stall           it made no progress for too long

Guarantees
    RU-1  A failure that `never` names ends the job, also if `only` names it.
    RU-2  Where `only` names causes, any other failure ends the job.
    RU-3  A failure ends the job when it comes for the `same_max`-th time in a row at the same step.
          Workers that tell no steps are at one step all the time.
    RU-4  The pause before a restart depends on the run's id and the number of its failures alone,
          so that all nodes of a job pause equally, and jobs that failed together do not.
    RU-5  It is at least half of `first_s` and at most `most_s`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from signal import Signals

from holdfast.errors import UsageError
from holdfast.process.outcome.failure import Failure
from holdfast.records import dataclass

__all__ = [
    "OOM",
    "STALL",
    "RestartBackoff",
    "RestartRules",
    "Ruling",
    "describe_failure",
    "parse_backoff",
    "parse_causes",
    "parse_duration",
]

OOM, STALL = "oom", "stall"
SAME_MAX = 100
"""So many earlier failures are compared at most."""
BACKOFF_MOST_S = 60.0
"""The longest pause where none is given."""

_KINDS = (OOM, STALL)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)")
_CAUSE_CHARS_MAX = 200
_CAUSES = "an exit code, SIGNAME, an exception class, oom or stall"


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether the rules allow a restart, and why not; `repeated` is how often it came in a row."""

    restart: bool
    reason: str = ""
    repeated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRules:
    """After which failures a job is restarted; without any, after all of them."""

    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    same_max: int | None = None

    def __post_init__(self) -> None:
        for cause in (*self.only, *self.never):
            _check_cause(cause)
        if self.same_max is not None and (
            type(self.same_max) is not int or not 2 <= self.same_max <= SAME_MAX
        ):
            raise UsageError(
                f"max same failures {self.same_max!r:.80}: must be a whole number from 2 to "
                f"{SAME_MAX}"
            )

    @property
    def compared(self) -> int:
        """How many earlier failures are needed to judge one."""
        return 0 if self.same_max is None else self.same_max - 1

    def judge(self, failure: Failure, before: Sequence[str]) -> Ruling:
        """Judge a failure; `before` describes the failures before it, the newest first."""
        causes = _causes_of(failure)
        if found := next((one for one in self.never if one in causes), ""):
            return Ruling(False, f"no restart after {found}: giving up")
        if self.only and not any(one in causes for one in self.only):
            return Ruling(False, f"restarts only after {', '.join(self.only)}: giving up")
        same = describe_failure(failure)
        times = 1 + next((n for n, one in enumerate(before) if one != same), len(before))
        if self.same_max is not None and times >= self.same_max:
            step = f" at step {failure.step}" if failure.step >= 0 else ""
            reason = f"the same failure{step} {times} times in a row: giving up"
            return Ruling(False, reason, times)
        return Ruling(True)


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """The pause before a restart: `first_s` after the first failure, then twice as long each time.

    Zero is no pause.
    """

    first_s: float = 0.0
    most_s: float = BACKOFF_MOST_S

    def __post_init__(self) -> None:
        if not 0 <= self.first_s <= self.most_s < float("inf"):
            raise UsageError(
                f"restart backoff {self.first_s:g} to {self.most_s:g} seconds: must be FIRST or "
                "FIRST:MOST, with 0 <= FIRST <= MOST"
            )

    def pause_s(self, run_id: str, failures: int) -> float:
        """Return how long to pause after this failure of the run, the first of which is 1."""
        whole = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 60))
        jitter = random.Random(f"{run_id}/{failures}")  # noqa: S311  # the same on every node
        return whole * jitter.uniform(0.5, 1.0)


def describe_failure(failure: Failure) -> str:
    """Return what makes two failures the same, as text for the store of the job."""
    what = failure.kind or failure.error_type or str(failure.exit)
    return f"{what} at step {failure.step}"[:_CAUSE_CHARS_MAX]


def parse_causes(text: str) -> tuple[str, ...]:
    """Read `1,SIGSEGV,ValueError,oom`: each once, in the order given."""
    causes = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for cause in causes:
        _check_cause(cause)
    return causes


def parse_duration(text: str) -> float:
    """Read `90`, `90s`, `10m` or `1.5h` as seconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r:.40} must be a time such as 90s, 10m or 1.5h")
    return float(found[1]) * _UNITS[found[2]]


def parse_backoff(text: str) -> RestartBackoff:
    """Read `2s` or `2s:5m`: the first pause, and the longest."""
    first, colon, most = text.partition(":")
    first_s = parse_duration(first)
    return RestartBackoff(first_s, parse_duration(most) if colon else max(first_s, BACKOFF_MOST_S))


def _causes_of(failure: Failure) -> frozenset[str]:
    """Return all causes that name a failure."""
    if failure.kind == STALL:
        return frozenset({STALL})  # how it ended says what the agent did to it
    code = failure.exit.code
    names = {failure.kind, failure.error_type, failure.error_type.rpartition(".")[2]}
    names.add(str(code) if code >= 0 else str(failure.exit).removeprefix("killed by "))
    return frozenset(names - {""})


def _check_cause(cause: object) -> None:
    if isinstance(cause, str) and 0 < len(cause) <= _CAUSE_CHARS_MAX:
        if cause in _KINDS or cause in Signals.__members__:
            return
        if cause.isascii() and cause.isdigit() and 1 <= int(cause) <= 255:
            return
        names = cause.split(".")
        if not cause.startswith("SIG") and all(part.isidentifier() for part in names):
            return
    raise UsageError(f"cause {cause!r:.80}: must be {_CAUSES}")
