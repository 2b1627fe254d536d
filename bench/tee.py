"""Tee: how much of the workers' output a second, and how soon a line shows on the console.

`python -m bench.tee SUBJECT COMMAND…` runs each command, its output teed to files and to standard
output, and writes to standard error how many seconds that took, and how many of a processor's in
that process. Here both ways take turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.subjects import ROOT, available
from bench.table import number, render
from holdfast.process.output.logs import RunLogs, WorkerPlace
from holdfast.process.output.streams import LogOptions, Std

__all__ = ["tee"]

MIB = 1024 * 1024
LINE = b"step 1234: loss 0.123456, 98765 tokens a second, learning rate 0.0003, memory 71.2 GiB\n"
STAMPS = """
import time
for _ in range({count}):
    print(time.monotonic_ns())
    time.sleep(0.037)
"""
LABELS = {"holdfast": "holdfast", "torch": "torch, tailing files"}


def tee(rounds: int, total_mib: int, lines: int) -> tuple[str, object]:
    """Measure 1 and 8 workers that write as fast as they can, then single lines."""
    subjects = [name for name in LABELS if name == "holdfast" or available(name)]
    found: dict[str, dict[str, list[float]]] = {name: {} for name in subjects}
    with tempfile.NamedTemporaryFile() as spam:
        for workers in (1, 8):
            size = total_mib * MIB // workers // len(LINE) * len(LINE)
            Path(spam.name).write_bytes(LINE * (size // len(LINE)))
            for _ in range(rounds):
                for name in subjects:
                    took, busy = _spam(name, [f"cat {spam.name}"] * workers, size * workers)
                    megabytes = size * workers / 1e6
                    for what, figure in (
                        (f"{workers} worker(s), MB/s", megabytes / took),
                        ("its CPU, ms/MB", busy * 1000 / megabytes),
                    ):
                        found[name].setdefault(what, []).append(figure)
    for name in subjects:
        delays = sorted(_delays(name, lines))
        found[name]["a line's delay, ms"] = [statistics.median(delays)]
        found[name]["at most"] = [delays[-1]]
    data = {
        name: {what: statistics.median(values) for what, values in figures.items()}
        for name, figures in found.items()
    }
    head = ["", *data["holdfast"]]
    rows = [[LABELS[name], *map(number, figures.values())] for name, figures in data.items()]
    return render("output of workers, to files and the console", head, rows), data


def _spam(subject: str, commands: Sequence[str], size: int) -> tuple[float, float]:
    """Return how long it took until everything was written, and the processor's time for it."""
    command = [sys.executable, "-m", "bench.tee", subject, *commands]
    # Torch writes to the console line by line if Python's output is not buffered.
    buffered = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=buffered
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        count = 0
        while chunk := os.read(process.stdout.fileno(), MIB):
            count += len(chunk)
        took, busy = map(float, process.stderr.read().split()[-2:])
    if count <= size:
        raise SystemExit(f"{subject} showed {count} of more than {size} bytes")
    return took, busy


def _delays(subject: str, lines: int) -> list[float]:
    """Return how many milliseconds after their writing lines came, on a console like a terminal."""
    code = STAMPS.format(count=lines)
    command = [sys.executable, "-u", "-m", "bench.tee", subject, f"{sys.executable} -u -c"]
    with subprocess.Popen(
        [*command[:-1], f"{command[-1]} {code}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        return [
            (time.monotonic_ns() - int(line.rpartition(b":")[2])) / 1e6 for line in process.stdout
        ]


def _by_holdfast(commands: Sequence[Sequence[str]], folder: str) -> None:
    logs = RunLogs(LogOptions(log_dir=Path(folder), tee=Std.ALL), "bench")
    logs.open()
    attempt = logs.attempt(0, [WorkerPlace(rank, rank, "default") for rank in range(len(commands))])
    workers = []
    for rank, command in enumerate(commands):
        out, err = attempt.descriptors(rank)
        workers.append(subprocess.Popen(command, stdout=out, stderr=err))
        attempt.started(rank)
    for worker in workers:
        worker.wait()
    attempt.close(60)
    logs.close()


def _by_torch(commands: Sequence[Sequence[str]], folder: str) -> None:
    from torch.distributed.elastic import multiprocessing

    running = multiprocessing.start_processes(
        name="default",
        entrypoint=commands[0][0],
        args={rank: tuple(command[1:]) for rank, command in enumerate(commands)},
        envs={rank: {} for rank in range(len(commands))},
        logs_specs=multiprocessing.DefaultLogsSpecs(log_dir=folder, tee=multiprocessing.Std.ALL),
    )
    running.wait(period=0.01)
    sys.stdout.flush()


BY: dict[str, Callable[[Sequence[Sequence[str]], str], None]] = {
    "holdfast": _by_holdfast,
    "torch": _by_torch,
}


def _main() -> None:
    subject, *texts = sys.argv[1:]
    commands = [text.split(" ", 3) for text in texts]
    if subject == "torch":
        import torch.distributed.elastic.multiprocessing  # noqa: F401 - not part of what is timed
    with tempfile.TemporaryDirectory() as folder:
        began, began_cpu = time.perf_counter(), time.process_time()
        BY[subject](commands, folder)
        took, busy = time.perf_counter() - began, time.process_time() - began_cpu
    print(took, busy, file=sys.stderr)


if __name__ == "__main__":
    _main()
