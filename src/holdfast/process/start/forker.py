"""The agent's side of the forker: one small process that starts all programs.

A program needs things that only its own process can set: its session, the process to die with, its
processors. An interpreter that is started to set them, and then becomes the program, costs ten
times what they cost. The forker is one that stays: it sets what is the same for all programs once,
and forks (forker_main.py). What it forks is a child of the agent, not of the forker, and lives on
if the forker does not.

Where there is no such thing (another system, a machine whose system calls are not listed, a wrapper
in the place of the interpreter) an interpreter of its own starts each program.

Guarantees
    FO-1  A process that was asked for is returned, or it has not been started: none is unknown,
          whatever happens to the forker.
    FO-2  Nothing waits longer than ANSWER_WITHIN_S for a forker that does nothing.
    FO-3  The death of the forker ends no worker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.clock import Deadline
from holdfast.process.start import child
from holdfast.process.start.forker_main import ANSWER_BYTES, CALLS, LENGTH_BYTES
from holdfast.process.start.orders import write_order
from holdfast.process.stop.handle import WorkerProcess, end, open_process, readable, watch
from holdfast.records import dataclass

__all__ = ["ANSWER_WITHIN_S", "Forker", "ProgramOrder"]

ANSWER_WITHIN_S = 10.0
"""How long the next process may take to be started, on a machine with much else to do."""
ORDER_BYTES_MAX = 128 * 1024
"""What is longer goes the long way, where the system says if it is too long."""

_log = logging.getLogger("holdfast.process")


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """One program to start: the executable, its arguments from its name on, its environment.

    `streams` are the descriptors that are its stdout and stderr; `cpus` the processors, None: all.
    """

    program: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    streams: tuple[int, int]
    cpus: frozenset[int] | None = None

    def encode(self, number: int) -> bytes:
        """Return it as the forker reads it. ValueError if the system could not take it."""
        cpus = ",".join(map(str, sorted(self.cpus or ())))
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        words = [str(number), cpus, str(len(self.arguments)), self.program]
        words += [*self.arguments, *variables]
        data = os.fsencode("\0".join(words))
        if data.count(b"\0") >= len(words):
            raise ValueError("embedded null byte")
        return len(data).to_bytes(LENGTH_BYTES, "little") + data


class Forker:
    """Starts programs beside each other. Used by one thread; they die with the one that made it.

    `environment` is that of the forker itself. `cgroup` and `files` are what the programs get, as
    for `Starter`.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        cgroup: Path | None = None,
        files: tuple[int, int] | None = None,
    ) -> None:
        self._environment = dict(environment)
        self._fields = {"kind": "forker", "parent": str(os.getpid())}
        if cgroup is not None:
            self._fields["cgroup"] = os.fspath(cgroup)
        if files is not None:
            self._fields["files"] = ",".join(map(str, files))
        self._process: WorkerProcess | None = None
        self._orders: socket.socket | None = None
        self._answers = -1
        self._usable = (
            sys.platform == "linux" and os.uname().machine in CALLS and hasattr(os, "pidfd_open")
        )
        self._open()

    def start(self, programs: Sequence[ProgramOrder]) -> dict[int, WorkerProcess]:
        """Start these, and return the processes of those that it could start, by their index.

        Raises OSError or ValueError, and nothing is left then.
        """
        frames = [program.encode(number) for number, program in enumerate(programs)]
        if self._process is not None and self._process.reap() is not None:
            self.close()
            self._open()
        if self._orders is None or max(map(len, frames), default=0) > ORDER_BYTES_MAX:
            return {}
        asked = self._ask(self._orders, programs, frames)
        pids = self._hear(asked)
        if len(pids) < asked:  # one that never answered, or was refused, is not asked again
            self._usable = False
            self.close()
        return _watch_all(pids)

    def close(self) -> None:
        """End the forker, but none of what it started. Idempotent."""
        if self._orders is not None:
            self._orders.close()
            os.close(self._answers)
        if self._process is not None:
            end(self._process)
        self._orders = self._process = None

    def _open(self) -> None:
        """Start the process, if it is of use here; where there is no room for it, do without."""
        if not self._usable:
            return
        try:
            with contextlib.ExitStack() as theirs, contextlib.ExitStack() as undo:
                orders, their_orders = socket.socketpair()
                undo.callback(orders.close)
                theirs.callback(their_orders.close)
                answers, their_answers = os.pipe()
                undo.callback(os.close, answers)
                theirs.callback(os.close, their_answers)
                self._process = self._start(their_orders.fileno(), their_answers)
                undo.pop_all()
        except OSError as error:
            _log.debug("no forker: %s", error)
        else:
            self._orders, self._answers = orders, answers

    def _start(self, orders: int, answers: int) -> WorkerProcess:
        order = {**self._fields, "orders": str(orders), "answers": str(answers)}
        environment = {**self._environment, child.ORDER: write_order(order)}
        command = [sys.executable, "-I", "-S", child.SCRIPT, "holdfast-forker"]
        return open_process(command, environment, None, None, (orders, answers))

    def _ask(
        self, orders: socket.socket, programs: Sequence[ProgramOrder], frames: Sequence[bytes]
    ) -> int:
        """Send the orders; return how many it has got."""
        orders.settimeout(ANSWER_WITHIN_S)
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for number, (program, frame) in enumerate(zip(programs, frames, strict=True)):
                try:
                    sent = socket.send_fds(orders, [frame], [folder, *program.streams])
                    orders.sendall(memoryview(frame)[sent:])
                except OSError as error:  # it has died, or hangs
                    _log.debug("the forker takes no orders: %s", error)
                    self._kill()
                    return number + 1  # it may have got this one
        finally:
            os.close(folder)
        return len(frames)

    def _hear(self, asked: int) -> dict[int, int]:
        """Return the processes that were started for the orders, by number."""
        pids: dict[int, int] = {}
        heard = 0
        deadline = Deadline.after(ANSWER_WITHIN_S)
        while heard < asked:
            if not readable(self._answers, deadline.remaining() or 0):
                if self._kill():  # what it has started will answer, or has ended
                    deadline = Deadline.after(ANSWER_WITHIN_S)
                    continue
                break
            data = os.read(self._answers, ANSWER_BYTES * asked)
            if not data:
                break
            deadline = Deadline.after(ANSWER_WITHIN_S)
            words = memoryview(data).cast("i")
            heard += len(words) // 2
            pids.update((n, pid) for n, pid in zip(words[::2], words[1::2], strict=True) if pid)
        return pids

    def _kill(self) -> bool:
        """Let it start no more; false if it has ended before."""
        if self._process is None or self._process.reap() is not None:
            return False
        end(self._process)
        return True


def _watch_all(pids: Mapping[int, int]) -> dict[int, WorkerProcess]:
    """Watch these children of ours; if that cannot be done, none is left."""
    waiting = dict(pids)
    watched: dict[int, WorkerProcess] = {}
    try:
        for number in pids:
            watched[number] = watch(waiting.pop(number))
    except BaseException:
        for process in watched.values():
            end(process)
        for pid in waiting.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise
    return watched
