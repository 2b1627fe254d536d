"""The test's side of `job_node.py`: jobs of several agents, and FIFOs for their workers.

Nothing here waits by the clock: a worker writes to one FIFO when it is there, and reads from
another one until the test opens it.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.clock import Deadline
from holdfast.launch.config import LaunchConfig
from tests.e2e.rendezvous_nodes import FOREVER, Place, to_be_hosted
from tests.e2e.reporting import TIMEOUT_S, Report, ReportingProcess

ROOT = Path(__file__).parents[2]
START = "from tests.e2e.job_node import main; main()"
"""Not by its path: workers would import it again, as multiprocessing has it."""
QUICK = {"last_call_timeout": "0", "close_timeout": "20"}

BACKENDS = ("c10d", "etcd", "etcd-v2")
_runs = itertools.count(1)


class JobNode(ReportingProcess):
    """An agent of a job."""

    def started(self, **fields: object) -> Report:
        """Wait until its workers run, in a round like this."""
        return self.hear("WorkersStarted", **fields)

    def states(self) -> list[str]:
        """Return the states that it has been in, as far as has been read."""
        return [said["state"] for said in self.said if said["event"] == "state"]

    def returned(self) -> dict[int, Any]:
        """Wait for the end of a job that ends well; return the results of its workers by rank."""
        report = self.hear("returned")
        self.ended()
        return {int(rank): result for rank, result in report["results"].items()}

    def raised(self, error: str, status: int) -> Report:
        """Wait for the end of a job that raises this, and exits so; return what it said."""
        report = self.hear("raised", error=error)
        self.ended(status)
        return report


class Job:
    """Starts the agents of one job."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._all: list[JobNode] = []

    def start(
        self,
        entrypoint: str,
        *args: object,
        nodes: tuple[int, int] = (2, 2),
        workers: int = 1,
        output: Path | None = None,
        break_in: str = "",
        rdzv: dict[str, str] | None = None,
        **config: object,
    ) -> JobNode:
        """Start an agent that runs a function of `entrypoints.py`, or a command with a slash."""
        hosts = {"is_host": str(not self._all)} if self.place.backend == "c10d" else {}
        fields: dict[str, object] = {
            "min_nodes": nodes[0],
            "max_nodes": nodes[1],
            "nproc_per_node": workers,
            "run_id": self.place.run_id,
            "rdzv_backend": self.place.backend,
            "rdzv_endpoint": self.place.endpoint,
            "rdzv_configs": QUICK | FOREVER | self.place.config | hosts | (rdzv or {}),
            "max_restarts": 0,
        }
        kind = "command" if "/" in entrypoint else "function"
        wish: dict[str, object] = {
            "config": fields | config,
            kind: entrypoint,
            "args": args,
            "output": None if output is None else str(output),
            "break_in": break_in,
        }
        command = [sys.executable, "-c", START, json.dumps(wish)]
        node = JobNode(command, self.place.env, folder=ROOT)
        self._all.append(node)
        return node

    def discard(self) -> None:
        """End the agents that are left."""
        for node in self._all:
            node.discard()


@contextmanager
def job_over(backend: str, etcd: str, folder: Path) -> Iterator[Job]:
    """Give what starts the agents of a job; none of them is left at the end."""
    with to_be_hosted(folder) as c10d:  # there the first agent hosts the store
        in_etcd = replace(c10d, backend=backend, endpoint=etcd, config={}, hangs_up=False)
        job = Job(c10d if backend == "c10d" else in_etcd)
        try:
            yield job
        finally:
            job.discard()


def single(
    backend: str, etcd: str, workers: int, *, max_nodes: int = 1, **config: Any
) -> LaunchConfig:
    """Return the configuration of a job of one node, or of more if they come."""
    fields: dict[str, Any] = {
        "run_id": f"alone-{os.getpid()}-{next(_runs)}",
        "rdzv_backend": backend,
        "rdzv_endpoint": "localhost:0" if backend == "c10d" else etcd,
        "rdzv_configs": QUICK,
        "max_restarts": 0,
    }
    return LaunchConfig(1, max_nodes, workers, **fields | config)


class Bell:
    """Rung by workers when they are where they stay; `path` is what they are told."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR)  # so that it is always open in some process
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def rung_by_all(self, world_size: int) -> None:
        """Wait until every worker of a world of this size has rung."""
        missing = set(range(world_size))
        deadline = Deadline.after(TIMEOUT_S)
        while missing:
            ready, _, _ = select.select([self._fd], [], [], deadline.remaining())
            assert ready, f"ranks {missing} of {world_size} did not ring"
            *lines, self._rest = (self._rest + os.read(self._fd, 4096)).split(b"\n")
            for rank, size in (map(int, line.split()) for line in lines):
                if size == world_size:
                    missing.discard(rank)


class Door:
    """A FIFO before which one worker waits; `path` is what it is told."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)

    def open(self) -> None:
        """Let the worker go on, once it is there."""
        with open(self.path, "wb"):
            pass
