"""What went wrong in a worker, as data: the error file's format, and which failure came first.

Rule: everything that says what a failure is, and in which order failures are told, is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.process.spec import Exit

__all__ = ["Failure", "WorkerExited"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure of one worker.

    `at` is when it happened, in seconds since 1970 on the clock of its host: when the worker
    raised if its error file says so, else when its end was noticed. `stack` is the Python stack of
    a native crash; `hint` is what else is known, such as that the kernel was out of memory.
    `error_data` is the error file's content if it had one that could be read.
    """

    rank: int
    local_rank: int
    role: str
    host: str
    pid: int
    exit: Exit
    at: float
    message: str
    traceback: str = ""
    stack: str = ""
    hint: str = ""
    error_file: str = ""
    error_data: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker's process has ended. `failure` is None if it ended well.

    `asked` says that it ended after the group had been told to stop: it is nobody's failure then,
    unless its error file shows that it had failed before.
    """

    local_rank: int
    pid: int
    exit: Exit
    failure: Failure | None
    asked: bool
