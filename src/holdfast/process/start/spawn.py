"""Starts workers, by any method.

A worker's process is a session and a process group of its own, and ends with the thread that
started it: call `start` from a thread that lives as long as the workers shall.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, assert_never

from holdfast.errors import HoldfastError, Unavailable, UsageError
from holdfast.process.spec import (
    Function,
    Launch,
    Module,
    Program,
    Script,
    StartMethod,
    entrypoint_name,
)
from holdfast.process.start import child
from holdfast.process.start.checks import check_entrypoint, find_interpreter, find_program
from holdfast.process.start.forked import run_forked
from holdfast.process.start.forker import Forker, ProgramOrder
from holdfast.process.start.orders import write_order
from holdfast.process.start.payload import write_payload
from holdfast.process.start.warm import Standbys, function_command
from holdfast.process.start.zygote import Zygote, serve
from holdfast.process.stop.containment import outlive_group
from holdfast.process.stop.handle import WorkerProcess, end, open_process, readable, watch

__all__ = ["Starter", "Wanted", "WorkerProcess"]

_log = logging.getLogger("holdfast.process")

Wanted: TypeAlias = tuple[Launch, int | None, int | None]
"""A worker to start, with the descriptors of its stdout and stderr, or None for ours."""

# Errors of the system that say that what we were asked to run is wrong.
_WRONG = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.E2BIG)
_BEGIN_S = 10.0  # how long a forked process may take to become a group of its own


class Starter:
    """Starts workers.

    `cgroup` is the control group that they enter, as the path of its cgroup.procs. `files` are the
    limits of open files that they get, if not ours.
    `close_in_child` runs in a forked worker, which has a copy of all that this process has: it
    closes what keeps others waiting, such as the writing ends of pipes. `standbys` are used where
    they fit, `forker` for programs; both are closed with the starter.
    """

    def __init__(
        self,
        *,
        cgroup: Path | None = None,
        files: tuple[int, int] | None = None,
        close_in_child: Callable[[], None] = lambda: None,
        standbys: Standbys | None = None,
        forker: Forker | None = None,
    ) -> None:
        self._cgroup = cgroup
        self._files = files
        self._close_in_child = close_in_child
        self._standbys = standbys
        self._forker = forker
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None
        self._is_needless: Callable[[], bool] = lambda: False
        self._interrupted = False
        self._begun = False

    def begin(self, is_needless: Callable[[], bool] = lambda: False) -> None:
        """Begin with another group of workers: forget an `interrupt` of earlier ones.

        `is_needless` says whether the rest of the group need not be started any more; it is asked
        while a start waits for a forkserver.
        """
        with self._lock:
            self._is_needless = is_needless
            self._interrupted = False
            self._begun = True

    def interrupt(self) -> None:
        """Let no start wait for a forkserver any longer: it fails. From any thread."""
        with self._lock:
            self._interrupted = True
            if self._zygote is not None:
                self._zygote.interrupt()

    def start_all(self, workers: Sequence[Wanted]) -> Generator[WorkerProcess, None, None]:
        """Start workers and give their processes in this order; programs begin beside each other.

        Raises what `start` does. What has not been given then, or when the iterator is closed, is
        not left running.
        """
        ahead = self._fork_programs(workers)
        try:
            for index, (launch, stdout, stderr) in enumerate(workers):
                if index in ahead:
                    yield ahead.pop(index)
                else:
                    yield self.start(launch, stdout, stderr)
        finally:
            for process in ahead.values():
                end(process)

    def replenish(self) -> None:
        """Replace the standbys that became workers: when all workers have begun, not before."""
        if self._standbys is not None:
            self._standbys.replace()

    def start(self, launch: Launch, stdout: int | None, stderr: int | None) -> WorkerProcess:
        """Start a worker that writes to these descriptors, or to ours where there is none.

        UsageError if what it should run is not there; Unavailable if the system has no room.
        StartGivenUp if a forkserver kept it waiting until it was needless.
        """
        try:
            return self._start(launch, stdout, stderr)
        except HoldfastError:
            raise
        except (OSError, ValueError) as error:
            raise _refusal(error, launch) from error

    def _start(self, launch: Launch, stdout: int | None, stderr: int | None) -> WorkerProcess:
        entrypoint = launch.entrypoint
        order = self._order(launch)
        check_entrypoint(entrypoint, launch.environment)
        match entrypoint:
            case Function(start_method=StartMethod.FORK):
                return self._fork(entrypoint, launch, order, stdout, stderr)
            case Function(start_method=StartMethod.FORKSERVER):
                return self._fork_elsewhere(entrypoint, launch, order, stdout, stderr)
            case Function():
                return self._spawn(entrypoint, launch, order, stdout, stderr)
            case Script(path, args, python):
                command = [find_interpreter(python), "-u", child.SCRIPT, path, *args]
            case Module(name, args, python):
                command = [find_interpreter(python), "-u", child.SCRIPT, name, *args]
            case Program(path, args):
                order["program"] = find_program(path, launch.environment)
                command = [sys.executable, "-I", "-S", child.SCRIPT, path, *args]
            case _:
                assert_never(entrypoint)
        return self._open(command, launch, order, stdout, stderr)

    def _open(
        self,
        command: list[str],
        launch: Launch,
        order: dict[str, str],
        stdout: int | None,
        stderr: int | None,
        payload: tuple[int, ...] = (),
    ) -> WorkerProcess:
        """Let a standby become the worker if there is one, else start a process."""
        standby = None
        if self._standbys is not None:
            standby = self._standbys.take(launch, self._is_given_up)
        streams = _streams(stdout, stderr)
        if standby and standby.become(order, launch.environment, streams, payload):
            return standby.process
        if payload:
            order["payload"], order["inherited"] = str(payload[0]), ",".join(map(str, payload[1:]))
        environment = {**launch.environment, child.ORDER: write_order(order)}
        return open_process(command, environment, stdout, stderr, payload)

    def _is_given_up(self) -> bool:
        """Say whether a start need not be waited for any more."""
        return self._interrupted or self._is_needless()

    def close(self) -> None:
        """Release what was kept for further workers. Idempotent.

        What the start method forkserver started ends with it.
        """
        if self._standbys is not None:
            self._standbys.close()
        if self._forker is not None:
            self._forker.close()
        self._close_zygote()

    def _close_zygote(self) -> None:
        with self._lock:
            zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.close()

    def _fork_programs(self, workers: Sequence[Wanted]) -> dict[int, WorkerProcess]:
        """Let the forker start what it can: the processes by their index among the workers."""
        wanted = {
            index: (launch, launch.entrypoint, _streams(stdout, stderr))
            for index, (launch, stdout, stderr) in enumerate(workers)
            if isinstance(launch.entrypoint, Program)
        }
        if self._forker is None or not wanted:
            return {}
        orders = [
            ProgramOrder(
                find_program(program.path, launch.environment),
                (program.path, *program.args),
                launch.environment,
                streams,
                launch.cpus,
            )
            for launch, program, streams in wanted.values()
        ]
        indexes = list(wanted)
        try:
            started = self._forker.start(orders)
        except (OSError, ValueError) as error:
            raise _refusal(error, wanted[indexes[0]][0]) from error
        return {indexes[number]: process for number, process in started.items()}

    def _order(self, launch: Launch) -> dict[str, str]:
        order = {
            "kind": type(launch.entrypoint).__name__.lower(),
            "parent": str(os.getpid()),
            "folder": os.fspath(launch.folder.absolute()),
        }
        if self._cgroup is not None:
            order["cgroup"] = os.fspath(self._cgroup)
        if self._files is not None:
            order["files"] = ",".join(map(str, self._files))
        if launch.cpus is not None:
            order["cpus"] = ",".join(map(str, sorted(launch.cpus)))
        return order

    def _spawn(
        self,
        function: Function,
        launch: Launch,
        order: dict[str, str],
        stdout: int | None,
        stderr: int | None,
    ) -> WorkerProcess:
        with tempfile.TemporaryFile(dir=launch.folder) as payload:
            inherited = write_payload(function, f"Worker-{launch.rank}", payload)
            command = function_command(function)
            descriptors = (payload.fileno(), *inherited)
            return self._open(command, launch, order, stdout, stderr, descriptors)

    def _fork(
        self,
        function: Function,
        launch: Launch,
        order: dict[str, str],
        stdout: int | None,
        stderr: int | None,
    ) -> WorkerProcess:
        work = partial(child.call, function.call, function.args, function.kwargs, order["folder"])
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # else both processes would write what is in there
        reading, writing = os.pipe()

        def begun() -> None:
            os.write(writing, b"x")
            os.close(writing)
            os.close(reading)
            self._close_in_child()

        try:
            pid = _fork_quietly()
            if pid == 0:
                run_forked(order, launch.environment, (stdout, stderr), begun, work)
            # Until then a signal to its process group would find none.
            readable(reading, _BEGIN_S)
        finally:
            os.close(reading)
            os.close(writing)
        return watch(pid)

    def _fork_elsewhere(
        self,
        function: Function,
        launch: Launch,
        order: dict[str, str],
        stdout: int | None,
        stderr: int | None,
    ) -> WorkerProcess:
        with tempfile.TemporaryFile(dir=launch.folder) as payload:
            inherited = write_payload(function, f"Worker-{launch.rank}", payload)
            self._drop_unusable_zygote()
            zygote = self._zygote or Zygote(partial(self._start_zygote, function, launch))
            with self._lock:
                self._zygote = zygote
                if self._interrupted:
                    zygote.interrupt()
            try:
                return zygote.start(
                    order,
                    launch.environment,
                    _streams(stdout, stderr),
                    (payload.fileno(), *inherited),
                    self._is_needless,
                )
            except Unavailable:  # it hangs, or cannot fork: another one may do better
                self._close_zygote()
                raise

    def _drop_unusable_zygote(self) -> None:
        """Release a zygote that has died, or is stopped before the first start of a group.

        The workers that it has forked end with it: later it is the group's own that would.
        """
        first, self._begun = self._begun, False
        if self._zygote is None:
            return
        if first and self._zygote.stopped():
            _log.warning("the forkserver is stopped, and is replaced by another one")
            self._close_zygote()
        elif not self._zygote.alive():
            self._close_zygote()

    def _start_zygote(
        self, function: Function, launch: Launch, orders: socket.socket
    ) -> WorkerProcess:
        """Start it as a worker that serves; it imports what the function's module is."""
        folder = launch.folder / "forkserver"
        folder.mkdir(mode=0o700, exist_ok=True)
        module = getattr(function.call, "__module__", None)
        modules = (module,) if module and module != "__main__" else ()
        server = replace(
            launch,
            entrypoint=Function(serve, (orders, modules)),
            environment=outlive_group(launch.environment),
            folder=folder,
            cpus=None,
        )
        return self.start(server, None, None)


def _streams(stdout: int | None, stderr: int | None) -> tuple[int, int]:
    """Return the descriptors to send to a process that has none of ours."""
    return 1 if stdout is None else stdout, 2 if stderr is None else stderr


# Failing to start.


def _refusal(error: OSError | ValueError, launch: Launch) -> UsageError | Unavailable:
    what = f"cannot start {entrypoint_name(launch.entrypoint)} (rank {launch.rank}): {error}"
    if isinstance(error, OSError) and error.errno not in _WRONG:
        return Unavailable(what)
    return UsageError(what)


def _fork_quietly() -> int:
    """Fork, without the warning that other threads may hold locks: the user chose to fork."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
