"""What to run: an entry point, one worker of one attempt, and how its process ended.

Nothing here acts; the values are made by the agent and read by everything in this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from pathlib import Path
from signal import Signals
from typing import Any, TypeAlias, TypeVar, assert_never

from holdfast.records import dataclass

__all__ = [
    "Entrypoint",
    "Exit",
    "Function",
    "GroupEnded",
    "Launch",
    "Module",
    "Program",
    "Script",
    "StartMethod",
    "entrypoint_name",
    "for_local_rank",
    "forks",
]


class StartMethod(StrEnum):
    """How the process of a function begins, by multiprocessing's names."""

    SPAWN = "spawn"
    FORK = "fork"
    FORKSERVER = "forkserver"


@dataclass(frozen=True, slots=True)
class Function:
    """Call a function in each worker; what it returns comes back by rank."""

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    start_method: StartMethod = StartMethod.SPAWN
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Script:
    """Run a Python file as `python -u path args…` would."""

    path: str
    args: tuple[str, ...] = ()
    python: str = ""
    """The interpreter; empty for the one that runs the agent."""


@dataclass(frozen=True, slots=True)
class Module:
    """Run a Python module as `python -u -m name args…` would."""

    name: str
    args: tuple[str, ...] = ()
    python: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """Run any executable: a binary, a shell script; looked up in PATH if it has no slash."""

    path: str
    args: tuple[str, ...] = ()


Entrypoint: TypeAlias = Function | Script | Module | Program
_Entrypoint = TypeVar("_Entrypoint", bound=Entrypoint)
_LOCAL_RANK = "${local_rank}"


def entrypoint_name(entrypoint: Entrypoint) -> str:
    """Return the name by which people know it: the function's, or the file's."""
    match entrypoint:
        case Function(call):
            return str(getattr(call, "__qualname__", repr(call)))
        case Script(path) | Program(path):
            return path.rpartition("/")[2]
        case Module(name):
            return name
        case _:
            assert_never(entrypoint)


def forks(entrypoint: Entrypoint) -> bool:
    """Say whether a worker is a fork of the agent: it has a copy of what the forking thread has."""
    return isinstance(entrypoint, Function) and entrypoint.start_method is StartMethod.FORK


def for_local_rank(entrypoint: _Entrypoint, local_rank: int) -> _Entrypoint:
    """Return the entry point of one worker: `${local_rank}` in its arguments is its number."""
    args = tuple(
        arg.replace(_LOCAL_RANK, str(local_rank))
        if isinstance(arg, str) and _LOCAL_RANK in arg
        else arg  # as it is, also if its class is one of the user's strings
        for arg in entrypoint.args
    )
    return replace(entrypoint, args=args)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One worker of one attempt, everything decided.

    `environment` is the whole environment of the process, not an addition. `folder` is private
    to this worker and attempt, and is there: the error file, the stacks at a crash or before a
    KILL, and the return value are left in it. `cpus` are the processors to run on, None for all.
    """

    entrypoint: Entrypoint
    local_rank: int
    rank: int
    role: str
    environment: Mapping[str, str] = field(repr=False)
    folder: Path
    cpus: frozenset[int] | None = None

    @property
    def error_file(self) -> Path:
        """Where the worker says what went wrong, in torchrun's format."""
        return self.folder / "error.json"

    @property
    def stack_file(self) -> Path:
        """Where Python leaves its stacks at a native crash, and before the agent kills it."""
        return self.folder / "stack.txt"

    @property
    def progress_file(self) -> Path:
        """Where the worker tells its step."""
        return self.folder / "progress"

    @property
    def result_file(self) -> Path:
        """Where a function's return value is left, pickled."""
        return self.folder / "result.pickle"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: its exit code, or minus the number of the signal that killed it."""

    code: int

    @property
    def ok(self) -> bool:
        """Say whether it ended well."""
        return self.code == 0

    @property
    def shell_code(self) -> int:
        """The code that a shell would give: the process's own, or 128 + the signal."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"killed by {Signals(-self.code).name}"
        except ValueError:
            return f"killed by signal {-self.code}"


@dataclass(frozen=True, slots=True)
class GroupEnded:
    """No worker of the group runs any more; `abandoned` are processes that even KILL left there."""

    abandoned: tuple[int, ...] = ()
