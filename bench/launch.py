"""The launchers at their start and at rest: how soon workers run, what an idle agent costs."""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from pathlib import Path

from bench.jobs import LAUNCHERS, Job, compile_ours, cpu_s, descendants
from bench.subjects import available
from bench.table import number, render

__all__ = ["agents", "starting"]

MIB_KB = 1024
SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)


def starting(rounds: int) -> tuple[str, object]:
    """Measure from the command line to the first line of each of 2 workers.

    The time of processors is that of the launcher and its workers until then; it says more than the
    time on the clock where other programs run as well.
    """
    compile_ours()
    times: dict[str, list[float]] = {name: [] for name in launchers()}
    busy: dict[str, list[float]] = {name: [] for name in times}
    for _ in range(rounds):
        for name, taken in times.items():
            with tempfile.TemporaryDirectory() as folder, Job(name, 2, Path(folder)) as job:
                taken.append(1000 * (max(said.at for said in job.heard()) - job.began))
                busy[name].append(1000 * job.used_s())
    title = "launcher: command line to the first lines of 2 workers, ms"
    on_clock, clock_data = compared(title, times)
    on_processors, busy_data = compared("the same, time of processors, ms", busy)
    return f"{on_clock}\n\n{on_processors}", {"clock": clock_data, "processors": busy_data}


def agents(lasts_s: float) -> tuple[str, object]:
    """Measure what an agent with 2 sleeping workers takes; beside it, what else it keeps running.

    A process's share of what it shares with others is counted (PSS).
    """
    compile_ours()
    data: dict[str, dict[str, float]] = {}
    for name in launchers():
        with tempfile.TemporaryDirectory() as folder, Job(name, 2, Path(folder)) as job:
            workers = {said.pid for said in job.heard()}
            job.calm()
            helpers = [pid for pid in descendants(job.pid) if pid not in workers]
            cpu, switches = cpu_s(job.pid), _switches(job.pid)
            time.sleep(lasts_s)
            data[name] = {
                "RSS MiB": _memory_mib(job.pid, "Rss"),
                "PSS MiB": _memory_mib(job.pid, "Pss"),
                "helpers' PSS": sum(_memory_mib(pid, "Pss") for pid in helpers),
                "threads": len(list(Path(f"/proc/{job.pid}/task").iterdir())),
                "wake-ups/s": (_switches(job.pid) - switches) / lasts_s,
                "CPU ms/s": 1000 * (cpu_s(job.pid) - cpu) / lasts_s,
            }
    head = ["", *data["holdfast"]]
    rows = [[name, *map(number, figures.values())] for name, figures in data.items()]
    return render("launcher: an idle agent with 2 workers", head, rows + missing(head)), data


def launchers() -> list[str]:
    """Return the launchers that there are here."""
    return [name for name in LAUNCHERS if name == "holdfast" or available("torch")]


def missing(head: list[str]) -> list[list[str]]:
    """Return rows for those that there are not."""
    blank = [""] * (len(head) - 2)
    return [
        [name, "torch is not installed", *blank] for name in LAUNCHERS if name not in launchers()
    ]


def compared(title: str, times: dict[str, list[float]]) -> tuple[str, object]:
    """Return medians, and how many times as long torch's took."""
    data = {name: statistics.median(taken) for name, taken in times.items()}
    head = ["", "median", "least", "most", "of torchrun's"]
    rows = []
    for name, taken in times.items():
        share = number(data[name] / data["torchrun"]) if "torchrun" in data else ""
        rows.append([name, *map(number, (data[name], min(taken), max(taken))), share])
    return render(title, head, rows + missing(head)), data


def _memory_mib(pid: int, what: str) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(rf"^{what}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) / MIB_KB


def _switches(pid: int) -> int:
    """Return how often the threads of a process have gone to sleep, or were made to."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(count) for text in texts for count in SWITCHES.findall(text))
