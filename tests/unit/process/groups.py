"""A bench for groups of workers: it makes them, and hears what they say and report."""

from __future__ import annotations

import os
import queue
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.process.group import LOOK_EVERY_S, WorkerGroup
from holdfast.process.outcome.failure import Failure, WorkerExited
from holdfast.process.output.logs import AttemptLogs, RunLogs, WorkerPlace
from holdfast.process.output.streams import LogOptions
from holdfast.process.spec import Entrypoint, Exit, GroupEnded, Launch, Program
from holdfast.process.start.spawn import Starter
from holdfast.process.stop.containment import Containment

# What a worker says goes to the pipe SAY; it lives until it is ended.
SAY = 'echo "$RANK $$" > $SAY; '
FOREVER = SAY + "exec sleep 1000"
STUBBORN = "trap '' TERM; " + SAY + "while :; do sleep 1000; done"
POLITE = "trap 'exit 3' TERM; " + SAY + "while :; do sleep 1000 & wait; done"

Event = WorkerExited | GroupEnded


def examine(launch: Launch, pid: int, exit_: Exit) -> Failure:
    return Failure(
        rank=launch.rank,
        local_rank=launch.local_rank,
        role=launch.role,
        host="here",
        pid=pid,
        exit=exit_,
        at=0.0,
        message=str(exit_),
    )


def wait_for_end(fd: int) -> bool:
    """Wait for what a pidfd stands for; False if it does not come."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(20_000))


class Bench:
    """Makes groups, and hears what their workers say and what the groups report."""

    def __init__(self, folder: Path, containment: Containment, logs: RunLogs) -> None:
        self._folder = folder
        self._logs = logs
        self._fifo = folder / "say"
        os.mkfifo(self._fifo)
        self._say = os.fdopen(os.open(self._fifo, os.O_RDWR), "rb", buffering=0)
        self.containment = containment
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.starter = Starter(cgroup=containment.procs_path)
        self.groups: list[WorkerGroup] = []

    def launch(self, rank: int, what: str | Entrypoint, attempt: AttemptLogs) -> Launch:
        return Launch(
            entrypoint=Program("/bin/sh", ("-c", what)) if isinstance(what, str) else what,
            local_rank=rank,
            rank=rank,
            role="worker",
            environment={**os.environ, "RANK": str(rank), "SAY": str(self._fifo)},
            folder=attempt.folder(rank),
        )

    def group(
        self,
        *workers: str | Entrypoint,
        starter: Starter | None = None,
        examine: Callable[[Launch, int, Exit], Failure] = examine,
        kill_wait_s: float = 10.0,
        monitor_interval_s: float = LOOK_EVERY_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> WorkerGroup:
        places = [WorkerPlace(rank, rank, "worker") for rank in range(len(workers))]
        attempt = self._logs.attempt(len(self.groups), places)
        group = WorkerGroup(
            [self.launch(rank, what, attempt) for rank, what in enumerate(workers)],
            attempt,
            starter or self.starter,
            self.containment,
            self.events.put,
            examine=examine,
            kill_wait_s=kill_wait_s,
            monitor_interval_s=monitor_interval_s,
            clock=clock,
        )
        self.groups.append(group)
        return group

    def hear(self, number: int) -> list[tuple[int, int]]:
        """Return what this many workers say: the rank, and a pid."""
        heard: list[tuple[int, int]] = []
        for _ in range(number):
            line = b""
            while not line.endswith(b"\n"):
                line += self._say.read(1) or b""
            rank, pid = map(int, line.split())
            heard.append((rank, pid))
        return sorted(heard)

    def next(self) -> Event:
        return self.events.get(timeout=30)

    def next_exit(self) -> WorkerExited:
        event = self.next()
        assert isinstance(event, WorkerExited)
        return event

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self.starter.close()
        self._say.close()


@contextmanager
def bench_in(folder: Path) -> Iterator[Bench]:
    """Give a bench, and end what it has started."""
    logs = RunLogs(LogOptions(), "run")
    logs.open()
    with Containment() as containment:
        bench = Bench(folder, containment, logs)
        yield bench
        bench.close()
    logs.close()
