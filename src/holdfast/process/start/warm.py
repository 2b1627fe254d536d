"""Standbys: processes that have imported already, and wait to be told which worker they are.

A standby is started as a worker is, with the environment that all workers share, the script's
arguments and the script's folder to import from. It imports, waits for its order and goes on as a
worker that was started cold. What the imports printed it keeps until it knows where its output
goes. One that is given its order while it still imports goes on when it is done.

The first standbys are interpreters that import, and become the first workers. Those that replace
them are forked by one process that imports once, their parent (standby_parent.py), where the
imports allow that; else they are interpreters, too. The parent lets some time pass before it
imports, unless it has a processor beside those of the workers: the workers that were just started
need them more. Where standbys differ by their arguments, or the system cannot do it, there is no
parent, and interpreters replace interpreters.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.process.spec import (
    Function,
    Launch,
    Module,
    Script,
    StartMethod,
    entrypoint_name,
    for_local_rank,
)
from holdfast.process.start import child
from holdfast.process.start.orders import send_order, write_order
from holdfast.process.start.standby_parent import AskedStandby, StandbyParent
from holdfast.process.stop.containment import outlive_group
from holdfast.process.stop.handle import WorkerProcess, end, open_process

__all__ = ["Standby", "Standbys", "function_command"]

REFILL_DELAY_S = 2.0
"""How long the imports for the standbys that replace used ones wait where processors are few."""

_log = logging.getLogger("holdfast.process")

# What an interpreter reads when it starts, and what the linker does: these cannot be changed later.
_READ_AT_START = ("PYTHON", "LD_")


class Standby:
    """One process that waits."""

    def __init__(self, process: WorkerProcess, orders: socket.socket) -> None:
        self.process = process
        self._orders = orders

    def become(
        self,
        order: Mapping[str, str],
        environment: Mapping[str, str],
        streams: tuple[int, int],
        payload: Sequence[int] = (),
    ) -> bool:
        """Give it its order; false if it cannot be the worker, and then it is released."""
        try:
            where = {**order, "cwd": os.getcwd()}
            where.pop("cgroup", None)  # it is in there
            send_order(self._orders, where, environment, [*streams, *payload])
        except (ConnectionError, FileNotFoundError):  # it has died, or our folder was removed
            self.close()
            return False
        self._orders.close()
        return True

    def close(self) -> None:
        """End it."""
        self._orders.close()
        end(self.process)


class Standbys:
    """A standby for each worker, by local rank, for one entry point. Used by one thread.

    They end with the thread that made them. `environment` is what all the workers have in common,
    and what the imports may read, such as OMP_NUM_THREADS. `cgroup` is the control group that they
    enter, as for `Starter`.
    """

    def __init__(
        self,
        modules: Sequence[str],
        entrypoint: Script | Module | Function,
        *,
        count: int,
        environment: Mapping[str, str],
        cgroup: Path | None = None,
    ) -> None:
        self._cgroup = cgroup
        self._modules = tuple(modules)
        self._entrypoint = entrypoint
        self._count = count
        self._environment = dict(environment)
        self._waiting: dict[int, Standby] = {}  # by local rank, which the arguments may name
        self._asked: dict[int, AskedStandby] = {}
        self._parent: StandbyParent | None = None

    def fill(self, delay_s: float = 0.0) -> None:
        """Start as many as are missing; they begin to import after this time.

        Where there is no room for them, workers start cold: that is told, and fails nothing.
        """
        for local_rank in set(range(self._count)) - self._waiting.keys():
            try:
                self._waiting[local_rank] = self._start(local_rank, delay_s)
            except OSError as error:
                _log.warning("no worker can be kept warm: %s", error.strerror or error)
                return

    def replace(self) -> None:
        """Start those that take the places of used ones; for when all workers have begun."""
        if hasattr(os, "sched_getaffinity"):
            processors = len(os.sched_getaffinity(0))
        else:
            processors = os.cpu_count() or 1
        if not _can_fork(self._entrypoint):
            self.fill(0.0 if processors >= 2 * self._count else REFILL_DELAY_S)
            return
        try:
            self._ask(0.0 if processors > self._count else REFILL_DELAY_S)
        except OSError as error:
            _log.warning("no worker can be kept warm: %s", error.strerror or error)

    def take(
        self, launch: Launch, is_needless: Callable[[], bool] = lambda: False
    ) -> Standby | None:
        """Return the one that can become this worker, or None.

        Waits for the imports of the parent of standbys; StartGivenUp if it `is_needless` meanwhile.
        """
        if not self._fits(launch):
            return None
        if launch.local_rank in self._waiting:
            return self._waiting.pop(launch.local_rank)
        asked = self._asked.pop(launch.local_rank, None)
        there = None if asked is None else asked.wait(is_needless)
        return None if there is None else Standby(*there)

    def close(self) -> None:
        """End all of them, and what they have become if they were forked. Idempotent."""
        while self._waiting:
            self._waiting.popitem()[1].close()
        self._close_parent()

    def _close_parent(self) -> None:
        while self._asked:
            self._asked.popitem()[1].close()
        if self._parent is not None:
            self._parent.close()
            self._parent = None

    def _ask(self, delay_s: float) -> None:
        """Ask for as many as are missing, of a parent that begins to import after this time."""
        if self._parent is not None and not self._parent.alive():
            self._close_parent()
        missing = set(range(self._count)) - self._waiting.keys() - self._asked.keys()
        if missing and self._parent is None:
            self._parent = StandbyParent(*self._open(0, delay_s, {"forks": "yes"}))
        for local_rank in missing:
            assert self._parent is not None  # noqa: S101  # mypy cannot know
            self._asked[local_rank] = self._parent.ask()

    def _fits(self, launch: Launch) -> bool:
        """Say whether a standby of ours could not be told from this worker."""
        match launch.entrypoint, self._entrypoint:
            case Function(start_method=StartMethod.SPAWN), Function():
                pass  # it is sent, with its arguments
            case Script() | Module() as its, ours if its == for_local_rank(ours, launch.local_rank):
                pass
            case _:
                return False
        fixed = {name for name in launch.environment if name.startswith(_READ_AT_START)}
        return (
            self._environment.items() <= outlive_group(launch.environment).items()
            and fixed <= self._environment.keys()
        )

    def _start(self, local_rank: int, delay_s: float) -> Standby:
        return Standby(*self._open(local_rank, delay_s, {}))

    def _open(
        self, local_rank: int, delay_s: float, fields: Mapping[str, str]
    ) -> tuple[WorkerProcess, socket.socket]:
        """Start a process for a standby, or for the parent of standbys."""
        entrypoint = for_local_rank(self._entrypoint, local_rank)
        command, first = _command(entrypoint)
        ours, theirs = socket.socketpair()
        order = {
            "kind": "standby",
            "parent": str(os.getpid()),
            "orders": str(theirs.fileno()),
            "modules": ",".join(self._modules),
            "path": "\0".join(first),
            "becomes": type(entrypoint).__name__.lower(),
            "delay": str(delay_s),
            **fields,
        }
        if self._cgroup is not None:
            order["cgroup"] = os.fspath(self._cgroup)
        environment = {**self._environment, child.ORDER: write_order(order)}
        try:
            with theirs, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
                process = open_process(
                    command, environment, stdout.fileno(), stderr.fileno(), (theirs.fileno(),)
                )
        except BaseException:
            ours.close()
            raise
        return process, ours


def _can_fork(entrypoint: Script | Module | Function) -> bool:
    """Say whether one process can be the parent of the standbys for all local ranks."""
    return (
        sys.platform == "linux"
        and hasattr(os, "pidfd_open")
        and for_local_rank(entrypoint, 0) == for_local_rank(entrypoint, 1)
        and (isinstance(entrypoint, Function) or entrypoint.python in ("", sys.executable))
    )


def _command(entrypoint: Script | Module | Function) -> tuple[list[str], list[str]]:
    """Return how to start a process for it, and where that looks first for what it imports."""
    match entrypoint:
        case Script(path, args, python):
            folder = path if os.path.isdir(path) else child.first_path(path)
            return [python or sys.executable, "-u", child.SCRIPT, path, *args], [folder]
        case Module(name, args, python):
            return [python or sys.executable, "-u", child.SCRIPT, name, *args], child.here()
        case Function():
            return function_command(entrypoint), sys.path


def function_command(function: Function) -> list[str]:
    """Return how to start a process for a function: with the options of this interpreter."""
    flags = vars(subprocess)["_args_from_interpreter_flags"]()
    return [sys.executable, "-u", *flags, child.SCRIPT, entrypoint_name(function)]
