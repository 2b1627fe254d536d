"""Standbys: processes that have imported already, and wait to be told which worker they are.

A standby is started as a worker is, with the environment that all workers share, the script's
arguments and the script's folder to import from. It imports, waits for its order and goes on as a
worker that was started cold. What the imports printed it keeps until it knows where its output
goes. One that is given its order while it still imports goes on when it is done.

The standbys that replace used ones let some time pass before they import: the workers that
were just started need the processors more.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

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
from holdfast.process.stop.containment import outlive_group
from holdfast.process.stop.handle import WorkerProcess, end, open_process

__all__ = ["REFILL_DELAY_S", "Standby", "Standbys", "function_command"]

REFILL_DELAY_S = 2.0

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
    and what the imports may read, such as OMP_NUM_THREADS.
    """

    def __init__(
        self,
        modules: Sequence[str],
        entrypoint: Script | Module | Function,
        *,
        count: int,
        environment: Mapping[str, str],
    ) -> None:
        self._modules = tuple(modules)
        self._entrypoint = entrypoint
        self._count = count
        self._environment = dict(environment)
        self._waiting: dict[int, Standby] = {}  # by local rank, which the arguments may name

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

    def take(self, launch: Launch) -> Standby | None:
        """Return the one that can become this worker, or None."""
        return self._waiting.pop(launch.local_rank, None) if self._fits(launch) else None

    def close(self) -> None:
        """End all of them. Idempotent."""
        while self._waiting:
            self._waiting.popitem()[1].close()

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
        }
        environment = {**self._environment, child.ORDER: write_order(order)}
        try:
            with theirs, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
                process = open_process(
                    command, environment, stdout.fileno(), stderr.fileno(), (theirs.fileno(),)
                )
        except BaseException:
            ours.close()
            raise
        return Standby(process, ours)


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
