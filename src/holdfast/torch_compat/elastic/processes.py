"""torch's worker processes by ours: contained, watched, and true about what ended them.

torch's context stays, and with it where logs go, what is shown of them, and which signals end the
agent. The processes below it are ours.

Guarantees
    TP-1  When a context is closed nothing of its workers runs any more, nor anything that they have
          started, however it was started; also when the agent itself is killed.
    TP-2  A worker that fails is heard of at once, and the others are stopped.
    TP-3  Failures are those of workers that had failed before they were asked to end, the first
          one first. What the system knows of the cause is said with it.
    TP-4  Closing twice is closing once.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import (
    LogsSpecs,
    PContext,
    RunProcsResult,
    _validate_full_rank,
)
from torch.distributed.elastic.multiprocessing.errors import _NOT_AVAILABLE, ProcessFailure

from holdfast import env
from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.launch.entrypoints import make_entrypoint
from holdfast.process.group import WorkerGroup
from holdfast.process.numa import cpus_for
from holdfast.process.outcome.errorfile import examine
from holdfast.process.outcome.failure import Failure, WorkerExited, first_cause
from holdfast.process.outcome.memory import MemoryWatch
from holdfast.process.output.pump import open_log_file
from holdfast.process.signals import hear_of_children
from holdfast.process.spec import Exit, GroupEnded, Launch
from holdfast.process.start.returns import read_return
from holdfast.process.start.spawn import Starter
from holdfast.process.stop.containment import Containment
from holdfast.process.stop.escalation import KILL_WAIT_S
from holdfast.torch_compat.elastic import timers

__all__ = ["Processes", "start_processes"]

GRACE_S = 30
_ERROR_FILE = "error.json"

_log = logging.getLogger("holdfast.torch_compat")


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: dict[int, tuple[Any, ...]],
    envs: dict[int, dict[str, str]],
    logs_specs: LogsSpecs,
    log_line_prefixes: dict[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: Any = None,
    duplicate_stdout_filters: list[str] | None = None,
    duplicate_stderr_filters: list[str] | None = None,
) -> PContext:
    """Start a process for each local rank, as torch's function of this name does."""
    _validate_full_rank(args, len(args), "args")
    _validate_full_rank(envs, len(args), "envs")
    context = Processes(
        name,
        entrypoint,
        args,
        envs,
        logs_specs,
        log_line_prefixes,
        duplicate_stdout_filters,
        duplicate_stderr_filters,
        start_method=start_method,
        numa_binding=None if numa_options is None else numa_options.affinity_mode.value,
    )
    try:
        context.start()
    except BaseException:
        context.close()
        raise
    return context


class _Streams:
    """Where the workers write: files, or nothing for what this process has."""

    def __init__(self, stdouts: dict[int, str], stderrs: dict[int, str]) -> None:
        self._paths = {rank: (stdouts[rank], stderrs[rank]) for rank in stdouts}
        self._given: dict[int, list[int]] = {}

    def descriptors(self, local_rank: int) -> tuple[int | None, int | None]:
        """Open them for a worker."""
        given = self._given.setdefault(local_rank, [])
        opened: list[int | None] = []
        for path in self._paths[local_rank]:
            opened.append(open_log_file(Path(path)) if path else None)
            given += [fd for fd in opened[-1:] if fd is not None]
        return opened[0], opened[1]

    def started(self, local_rank: int) -> None:
        """Close what the worker holds now."""
        for descriptor in self._given.pop(local_rank, ()):
            os.close(descriptor)

    def close(self) -> None:
        """Close what no worker has taken."""
        for local_rank in list(self._given):
            self.started(local_rank)


class Processes(PContext):  # type: ignore[misc]  # it is torch's
    """The workers of one attempt, as torch's agent sees them."""

    def __init__(self, *args: Any, start_method: str, numa_binding: str | None) -> None:
        super().__init__(*args)
        self._start_method = start_method
        self._numa_binding = numa_binding
        self._streams = _Streams(self.stdouts, self.stderrs)
        self._folders: dict[int, tempfile.TemporaryDirectory[str]] = {}
        self._containment = Containment()
        self._starter: Starter | None = None
        self._group: WorkerGroup | None = None
        self._launches: list[Launch] = []
        self._pids: dict[int, int] = {}
        self._news: queue.SimpleQueue[WorkerExited | GroupEnded] = queue.SimpleQueue()
        self._heard = threading.Event()  # there may be news
        self._ended = threading.Event()
        self._running: set[int] = set()
        self._failures: list[Failure] = []
        self._result: RunProcsResult | None = None

    # What torch asks for.

    def pids(self) -> dict[int, int]:
        """Return the processes by local rank, also of those that have ended."""
        return dict(self._pids)

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all have ended well, or one has failed; None if that is not in time."""
        deadline = Deadline.after(None if timeout < 0 else timeout)
        while (result := self._poll()) is None and not deadline.passed():
            self._heard.wait(deadline.sooner(max(period, 0.001)).remaining())
        return result

    def _start(self) -> None:
        if self._group is not None:
            raise ValueError("the processes of this context have been started already")
        hear_of_children()
        containment = self._containment.open()
        self._starter = Starter(cgroup=containment.procs_path, close_in_child=containment.forget)
        self._launches = [self._launch(rank) for rank in range(self.nprocs)]
        memory, started_at = MemoryWatch.take(), SYSTEM_CLOCK.wall()

        def look(launch: Launch, pid: int, exit_: Exit) -> Failure:
            host, now = socket.gethostname(), SYSTEM_CLOCK.wall()
            known = timers.why(pid)
            return examine(
                launch,
                pid,
                exit_,
                host=host,
                started_at=started_at,
                noticed_at=now,
                memory=memory,
                known=known,
            )

        self._running = set(range(self.nprocs))
        self._group = WorkerGroup(
            self._launches, self._streams, self._starter, containment, self._tell, examine=look
        )
        self._pids = self._group.start()

    def _poll(self) -> RunProcsResult | None:
        self._hear()
        if self._result is None and (self._failures or not self._running):
            self._stop(signal.SIGTERM, GRACE_S)
            self._hear()
            self._result = self._judge()
            self.close()
        return self._result

    def _close(self, death_sig: signal.Signals, timeout: float = GRACE_S) -> None:
        self._stop(death_sig, timeout)
        if self._starter is not None:
            self._starter.close()
        self._containment.close()
        self._streams.close()
        while self._folders:
            self._folders.popitem()[1].cleanup()

    def _stop(self, number: signal.Signals, grace_s: float) -> None:
        """Ask the workers that run to end, kill those that do not, and wait for it."""
        if self._group is None:
            return
        if self._pids and not self._ended.is_set():
            self._group.stop(number, grace_s)
            self._ended.wait(grace_s + 2 * KILL_WAIT_S)
        if stuck := self._group.close():
            _log.error("processes %s of %s were killed and still run", stuck, self.name)

    # What becomes of the workers.

    def _tell(self, event: WorkerExited | GroupEnded) -> None:
        """Hear from the group's thread."""
        self._news.put(event)
        if isinstance(event, GroupEnded):
            self._ended.set()
        self._heard.set()

    def _hear(self) -> None:
        self._heard.clear()
        while not self._news.empty():
            event = self._news.get()
            if isinstance(event, WorkerExited):
                self._running.discard(event.local_rank)
                if event.failure is not None:
                    self._failures.append(event.failure)

    def _judge(self) -> RunProcsResult:
        result = RunProcsResult(stdouts=self.stdouts, stderrs=self.stderrs)
        for failure in first_cause(self._failures):
            result.failures[failure.local_rank] = self._as_torchs(failure)
            _log.error("worker %d of %s failed: %s", failure.rank, self.name, failure.message)
        if not result.failures:
            result.return_values = {
                one.local_rank: self._take_return(one) for one in self._launches
            }
        return result

    def _as_torchs(self, failure: Failure) -> ProcessFailure:
        told = ProcessFailure(
            local_rank=failure.local_rank,
            pid=failure.pid,
            exitcode=failure.exit.code,
            error_file=failure.error_file,
        )
        if failure.hint and isinstance(told.message, str):
            told.message = f"{told.message} ({failure.hint})"
        if failure.local_rank in self._folders:
            told.error_file = _NOT_AVAILABLE  # it goes with the context
        return told

    def _take_return(self, launch: Launch) -> Any:
        try:
            return read_return(launch)
        finally:
            launch.result_file.unlink(missing_ok=True)

    # One worker.

    def _launch(self, local_rank: int) -> Launch:
        folder = self._folder(local_rank)
        environment = env.variables() | self.envs[local_rank]
        environment["TORCHELASTIC_ERROR_FILE"] = str(folder / _ERROR_FILE)
        args = self.args[local_rank]
        if isinstance(self.entrypoint, str):
            args = tuple(map(str, args))
        return Launch(
            entrypoint=make_entrypoint(self.entrypoint, args, self._start_method),
            local_rank=local_rank,
            rank=int(environment.get("RANK", local_rank)),
            role=self.name,
            environment=environment,
            folder=folder,
            cpus=cpus_for(
                self._numa_binding,
                local_rank,
                self.nprocs,
                visible_gpus=environment.get("CUDA_VISIBLE_DEVICES"),
            ),
        )

    def _folder(self, local_rank: int) -> Path:
        """Return where a worker leaves what it has to say: where torch looks, if it can be."""
        wanted = Path(self.error_files.get(local_rank) or os.devnull)
        if wanted.name == _ERROR_FILE and wanted.parent.name == str(local_rank):
            return wanted.parent
        folder = tempfile.TemporaryDirectory(prefix="holdfast_")
        self._folders[local_rank] = folder
        return Path(folder.name)
