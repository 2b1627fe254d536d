"""Real workers for tests: start one, wait for its end, and see what it left."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.process.spawn import Starter, WorkerProcess
from holdfast.process.spec import Entrypoint, Exit, Launch

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
