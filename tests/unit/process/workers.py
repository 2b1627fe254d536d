"""Real workers for tests: start one, wait for its end, and see what it left."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.process.spec import Entrypoint, Exit, Launch
from holdfast.process.start.spawn import Starter, WorkerProcess, _fork_quietly
from holdfast.process.stop.handle import is_ending

TIMEOUT_S = 60.0


def launch_of(
    folder: Path,
    entrypoint: Entrypoint,
    *,
    rank: int = 0,
    environment: Mapping[str, str] | None = None,
    cpus: frozenset[int] | None = None,
) -> Launch:
    mine = folder / f"rank{rank}"
    mine.mkdir(exist_ok=True)
    return Launch(
        entrypoint=entrypoint,
        local_rank=rank,
        rank=rank,
        role="default",
        environment={**os.environ, "RANK": str(rank), **(environment or {})},
        folder=mine,
        cpus=cpus,
    )


@dataclass(frozen=True)
class Ended:
    exit: Exit
    stdout: str
    stderr: str
    launch: Launch

    @property
    def error(self) -> dict[str, Any] | None:
        if not self.launch.error_file.exists():
            return None
        content: dict[str, Any] = json.loads(self.launch.error_file.read_bytes())["message"]
        return content


class Running:
    """A worker that runs, with its output in files."""

    def __init__(self, starter: Starter, launch: Launch) -> None:
        self.launch = launch
        self._stdout = launch.folder / "stdout.log"
        self._stderr = launch.folder / "stderr.log"
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self.process: WorkerProcess = starter.start(launch, stdout.fileno(), stderr.fileno())

    def end(self) -> Ended:
        try:
            if not select.select([self.process.fileno()], [], [], TIMEOUT_S)[0]:
                os.killpg(self.process.pid, signal.SIGKILL)
                select.select([self.process.fileno()], [], [], TIMEOUT_S)
            ended = self.process.reap()
        finally:
            self.process.close()
        assert ended is not None
        stdout, stderr = self._stdout.read_text(), self._stderr.read_text()
        return Ended(ended, stdout, stderr, self.launch)


def run(starter: Starter, launch: Launch) -> Ended:
    """Start a worker and wait for its end."""
    return Running(starter, launch).end()


def await_end(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], TIMEOUT_S)[0], f"process {pid} lives on"
    finally:
        os.close(descriptor)


def await_line(path: Path, process: WorkerProcess) -> str:
    """Wait for a FIFO's first line, as a worker writes it."""
    with path.open() as fifo:
        return fifo.readline().strip()


_NEW_PIDS = 0x20000000


class SlowToEnd:
    """A child that begins to end when it is killed, and has ended only when it is released.

    It is the first process of a namespace of its own, which the kernel lets end when no other is
    left in there; and one is, though dead, until it is reaped.
    """

    def __init__(self) -> None:
        self._gate, self._hold = os.pipe()
        self.pid = _fork_quietly()
        if self.pid == 0:
            os.setsid()
            os.close(self._hold)
            os.read(self._gate, 1)
            os._exit(0)
        self._dead: int | None = _fork_quietly()
        if self._dead == 0:
            os._exit(0)

    def kill(self) -> None:
        """Kill it, and wait until it ends."""
        os.kill(self.pid, signal.SIGKILL)
        self.await_ending()

    def await_ending(self) -> None:
        """Wait until it has been killed."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_ending(self.pid):
            assert time.monotonic() < deadline, f"process {self.pid} does not end"

    def let_go(self) -> None:
        """Let it come to its end."""
        if self._dead is not None:
            os.waitpid(self._dead, 0)
            self._dead = None

    def close(self) -> None:
        """End it, if it lives, and reap it, if that was not done."""
        self.let_go()
        os.close(self._gate)
        os.close(self._hold)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


@contextmanager
def slow_to_end() -> Iterator[SlowToEnd]:
    """Give a process that is slow to end; skip the test if we may not make one."""
    libc = ctypes.CDLL(None)
    with open("/proc/self/ns/pid") as ours:
        if libc.unshare(_NEW_PIDS):
            pytest.skip("needs to make a namespace for processes, as root")
        try:
            slow = SlowToEnd()
        finally:
            libc.setns(ours.fileno(), _NEW_PIDS)
    try:
        yield slow
    finally:
        slow.close()
