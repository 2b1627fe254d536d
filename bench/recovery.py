"""Recovery of one node: SIGKILL of one of 4 workers to all 4 of the next round running."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.jobs import Job, compile_ours
from bench.launch import compared, launchers
from bench.subjects import available

__all__ = ["recovery"]

WORKERS = 4


def recovery(rounds: int, imported: str = "") -> tuple[str, object]:
    """Measure it; workers that import something have it warm under our launcher.

    Both jobs run at once and lose a worker in turn, each when both are calm: nothing of the last
    recovery, such as new standbys that import, goes on then.
    """
    title = (
        f"launcher: SIGKILL of one of {WORKERS} workers to {WORKERS} of the next round running, "
    )
    title += f"workers that import {imported}, ms" if imported else "plain workers, ms"
    if imported and not available("torch"):
        return f"{title}: torch is not installed", {}
    compile_ours()
    times: dict[str, list[float]] = {name: [] for name in launchers()}
    with ExitStack() as stack:
        jobs = []
        for name in times:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            flags: tuple[str, ...] = (f"--max-restarts={rounds}",)
            if imported and name == "holdfast":
                flags += (f"--warm={imported}",)
            imports = f"import {imported}" if imported else ""
            job = Job(name, WORKERS, folder, flags=flags, imports=imports)
            jobs.append(stack.enter_context(job))
        running = {job.launcher: job.heard() for job in jobs}
        for turn in range(rounds):
            for job in jobs:
                for one in jobs:
                    one.calm()
                victim = running[job.launcher][turn % WORKERS]
                os.kill(victim.pid, signal.SIGKILL)
                killed_at = time.perf_counter()
                running[job.launcher] = job.heard()
                last = max(said.at for said in running[job.launcher])
                times[job.launcher].append(1000 * (last - killed_at))
    return compared(title, times)
