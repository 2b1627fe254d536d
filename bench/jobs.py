"""Jobs of workers that only say that they run, under our launcher and under torch's."""

from __future__ import annotations

import compileall
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import holdfast
from bench.subjects import ROOT

__all__ = ["LAUNCHERS", "Job", "Said", "compile_ours"]

PATIENCE_S = 120.0
END_WITHIN_S = 30.0
QUIET_S = 1.0
QUIET_SHARE = 0.05  # of one processor
_TICKS_S = os.sysconf("SC_CLK_TCK")

WORKER = """
import os, time
{imports}
os.write(1, b"%s %d\\n" % (os.environb[b"RANK"], os.getpid()))
time.sleep(3600)
"""
PROGRAM = "echo $RANK $$; exec sleep 3600\n"
LAUNCHERS = {"holdfast": ["holdfast", "run"], "torchrun": ["torch.distributed.run"]}


class Said(NamedTuple):
    """What a worker said when it began, and when we heard it."""

    rank: int
    pid: int
    at: float


def compile_ours() -> None:
    """Compile our package as pip does for one that it installs, torch's for one."""
    folder = Path(holdfast.__file__).parent
    if not compileall.compile_dir(folder, quiet=1):
        raise SystemExit(f"{folder} cannot be compiled")


class Job:
    """A job on this machine, from its command line on; a context manager that ends it.

    `imports` is what its workers do before they say that they run. With `plain` they are programs
    and no Python.
    """

    def __init__(
        self,
        launcher: str,
        workers: int,
        folder: Path,
        *,
        flags: tuple[str, ...] = (),
        imports: str = "",
        plain: bool = False,
    ) -> None:
        script = folder / "worker"
        script.write_text(PROGRAM if plain else WORKER.format(imports=imports))
        command = ["--no-python", "sh", str(script)] if plain else [str(script)]
        module, *words = LAUNCHERS[launcher]
        options = ["--standalone", f"--nproc-per-node={workers}", *flags]
        self.launcher = launcher
        self._workers = workers
        self._buffer = b""
        self._errors = (folder / "stderr").open("wb+")
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words, *options, *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdout is not None
        # Ended while it has just started its workers, torchrun leaves them.
        started = [os.pidfd_open(pid) for pid in descendants(self.pid)]
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for process in started:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
        self._process.stdout.close()
        self._errors.close()

    def heard(self) -> list[Said]:
        """Wait until every worker of a round has said that it runs."""
        deadline = time.perf_counter() + PATIENCE_S
        said: list[Said] = []
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while len(said) < self._workers:
                data = b""
                if selector.select(max(0.0, deadline - time.perf_counter())):
                    data = os.read(self._process.stdout.fileno(), 4096)
                if not data:
                    raise SystemExit(f"{self.launcher}: no workers\n{self._complaints()}")
                now = time.perf_counter()
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                for line in lines:
                    rank, pid = map(int, line.split())
                    said.append(Said(rank, pid, now))
        return said

    def calm(self) -> None:
        """Wait until the launcher and what it started do next to nothing."""
        deadline = time.perf_counter() + PATIENCE_S
        used = self.used_s()
        while time.perf_counter() < deadline:
            time.sleep(QUIET_S)
            before, used = used, self.used_s()
            if used - before < QUIET_SHARE * QUIET_S:
                return
        raise SystemExit(f"{self.launcher}: never quiet")

    def used_s(self) -> float:
        """Return how many seconds of processors the job has used, but for what has ended."""
        return sum(cpu_s(pid) for pid in [self.pid, *descendants(self.pid)])

    def spent_s(self) -> float:
        """Return the same with what has ended and been reaped."""
        return sum(cpu_s(pid, reaped=True) for pid in [self.pid, *descendants(self.pid)])

    def _complaints(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


def descendants(pid: int) -> list[int]:
    """Return what a process has started, and what that has."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        texts = [Path(f"/proc/{pid}/task/{one}/children").read_text() for one in threads]
    except OSError:
        return []
    children = [int(word) for text in texts for word in text.split()]
    return children + [below for child in children for below in descendants(child)]


def cpu_s(pid: int, *, reaped: bool = False) -> float:
    """Return how many seconds of a processor a process has used; 0 if it is gone.

    `reaped` counts its children that it has reaped, too.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if reaped else 13])) / _TICKS_S
