"""Restarts of a node's workers: SIGKILL of one to the first lines of all.

A machine with few cores measures fewer workers, and fewer other processes on the host.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.growth import series
from bench.jobs import Job, compile_ours
from bench.launch import launchers
from bench.progress import say
from bench.table import number, render

__all__ = ["QUICK", "WHOLE", "Extent", "restarts"]

PROGRAMS = (8, 64, 256)
GROWING = (2, 4, 8, 16, 32)
"""How many programs are restarted to see how that grows."""
WARM = (4, 8)
SOON_S = 1.0
WORKERS_FOR_EACH_CORE = 32
OTHERS_FOR_EACH_CORE = 512
OTHERS_MAX = 5000

Found = dict[str, dict[str, float]]
"""For each label, and each launcher: milliseconds."""


class Extent(NamedTuple):
    """How often each row is measured, and whether torch is imported for one of them."""

    rounds: int
    with_torch: bool


QUICK = Extent(rounds=2, with_torch=False)
WHOLE = Extent(rounds=9, with_torch=True)


class Taken(NamedTuple):
    """One restart: milliseconds, and those of processors for each worker."""

    clock: float
    processors: float


def restarts(extent: Extent, part: str = "") -> tuple[str, object]:
    """Measure all or a part, ours and torchrun's in turn where torchrun has the same."""
    compile_ours()
    found: Found = {}
    growth: dict[str, dict[str, object]] = {}
    if part in ("", "programs"):
        found |= _programs(extent.rounds)
    if part in ("", "growth"):
        figures = _growing(extent.rounds)
        growth["workers of a node: restart, ms"] = {"holdfast": series(figures)}
    if part in ("", "warm"):
        for workers in WARM:
            taken = _restarted(workers, extent.rounds, ["holdfast"], flags=("--warm=json",))
            found[f"{workers} warm"] = _clock(taken)
    if part in ("", "others"):
        figures = _among_others(extent.rounds)
        growth["processes of the host: restart, ms"] = {"holdfast": series(figures)}
    if part == "soon" or (not part and extent.with_torch):
        found |= _soon(max(2, extent.rounds // 3))
    rows = [
        [LABELS.get(label, label), *(_cell(figures.get(who)) for who in ("holdfast", "torchrun"))]
        for label, figures in found.items()
    ]
    title = "launcher: SIGKILL of one worker to the first lines of all, ms"
    text = render(title, ["", "holdfast", "torchrun"], rows) if rows else ""
    return text, {**found, "growth": growth}


LABELS = {
    "4 warm": "4 workers, --warm json",
    "8 warm": "8 workers, --warm json",
    "soon": f"4 workers that import torch, {SOON_S:g} s after their start, --warm torch",
}


def _cell(figure: float | None) -> str:
    return "-" if figure is None else number(figure)


def _clock(taken: dict[str, list[Taken]]) -> dict[str, float]:
    return {name: statistics.median(one.clock for one in all_) for name, all_ in taken.items()}


def _most_workers() -> int:
    return WORKERS_FOR_EACH_CORE * (os.cpu_count() or 1)


def _programs(rounds: int) -> Found:
    found: Found = {}
    for workers in PROGRAMS:
        if workers > _most_workers():
            say(f"{workers} programs are too many for this machine")
            continue
        taken = _restarted(workers, rounds, launchers(), plain=True)
        found[f"{workers} programs"] = _clock(taken)
        found[f"{workers} programs, processors"] = {
            name: statistics.fmean(one.processors for one in all_) for name, all_ in taken.items()
        }
    return found


def _growing(rounds: int) -> dict[int, float]:
    """Measure how a restart grows with the workers of the node."""
    found: dict[int, float] = {}
    for workers in GROWING:
        taken = _restarted(workers, rounds, ["holdfast"], plain=True)
        found[workers] = _clock(taken)["holdfast"]
    return found


def _among_others(rounds: int) -> dict[int, float]:
    """Measure how a restart grows with what else runs on the host."""
    most = min(OTHERS_MAX, OTHERS_FOR_EACH_CORE * (os.cpu_count() or 1))
    found: dict[int, float] = {}
    for others in (0, most // 4, most):
        with _others(others):
            everything = sum(name.isdigit() for name in os.listdir("/proc"))
            say(f"restarts among {everything} processes")
            taken = _restarted(4, rounds, ["holdfast"], flags=("--warm=json",))
        found[everything] = _clock(taken)["holdfast"]
    return found


def _soon(rounds: int) -> Found:
    """Measure workers that import torch and die before their replacements can be ready."""
    found: dict[str, float] = {}
    for name in launchers():
        flags = ("--warm=torch",) if name == "holdfast" else ()
        taken = _restarted(4, rounds, [name], flags=flags, imports="import torch", soon=True)
        found |= _clock(taken)
    return {"soon": found}


def _restarted(
    workers: int,
    rounds: int,
    names: list[str],
    *,
    flags: tuple[str, ...] = (),
    imports: str = "",
    plain: bool = False,
    soon: bool = False,
) -> dict[str, list[Taken]]:
    """Restart the jobs of these launchers in turn, when ours is calm; or `soon` after the last."""
    say(f"restarts of {workers} workers, {' and '.join(names)}")
    taken: dict[str, list[Taken]] = {name: [] for name in names}
    flags = (f"--max-restarts={rounds}", *flags)
    with ExitStack() as stack:
        jobs = []
        for name in names:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            job = Job(name, workers, folder, flags=flags, imports=imports, plain=plain)
            jobs.append(stack.enter_context(job))
        running = {job.launcher: job.heard() for job in jobs}
        for turn in range(rounds):
            for job in jobs:
                _rest(jobs, soon=soon)
                spent = job.spent_s()
                os.kill(running[job.launcher][turn % workers].pid, signal.SIGKILL)
                killed_at = time.perf_counter()
                running[job.launcher] = job.heard()
                last = max(said.at for said in running[job.launcher])
                spent = 1000 * (job.spent_s() - spent) / workers
                taken[job.launcher].append(Taken(1000 * (last - killed_at), spent))
    return taken


def _rest(jobs: list[Job], *, soon: bool) -> None:
    if soon:
        time.sleep(SOON_S)
        return
    for job in jobs:
        if job.launcher == "holdfast":  # torchrun replaces nothing afterwards, and is never calm:
            job.calm()  # it polls each worker


@contextmanager
def _others(count: int) -> Iterator[None]:
    """Keep so many other processes on the host; they sleep."""
    code = f"i=0; while [ $i -lt {count} ]; do sleep 3600 & i=$((i+1)); done; echo; wait"
    with subprocess.Popen(
        ["sh", "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as crowd:
        assert crowd.stdout is not None
        crowd.stdout.readline()
        try:
            yield
        finally:
            os.killpg(crowd.pid, signal.SIGKILL)
