"""Stores: operations a second, idle clients, wake-up latency, memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import holdfast
from bench.client import acts, torch_client
from bench.progress import say
from bench.subjects import KINDS, ROOT, Subject, available, serve_subject
from bench.table import number, render

__all__ = ["idle_clients", "memory", "rates", "wakeups"]

Figures = dict[str, float]
PEER = "torch"


def run_clients(subject: Subject, operation: str, clients: int, seconds: float) -> Figures:
    """Let clients work, in up to four processes, and add up what they measured."""
    processes = 1 if clients == 1 or subject.kind == "memory" else 4
    command = [sys.executable, "-m", "bench.client", subject.endpoint, operation]
    command += [str(clients // processes), str(seconds)]
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
                )
            )
            for _ in range(processes)
        ]
        for process in running:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise SystemExit(f"a client of {subject.endpoint} failed")
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [json.loads(process.communicate(timeout=120)[0]) for process in running]
    return {
        "rate": sum(result["rate"] for result in results),
        "p50_us": statistics.median(result["p50_us"] for result in results),
        "p99_us": max(result["p99_us"] for result in results),
    }


def rates(rounds: int, seconds: float, part: str = "") -> tuple[str, object]:
    """Measure operations a second of every backend, with 1 and with 64 clients, taking turns.

    The part `add` is that of one client, at our server and at torch's.
    """
    tables, data = [], {}
    kinds = [kind for kind in KINDS if available(kind) and (not part or kind in ("tcp", PEER))]
    for clients in (1,) if part else (1, 64):
        for operation in (part,) if part else ("get", "set", "add"):
            say(f"stores: {operation} by {clients} client(s)")
            found: dict[str, list[Figures]] = {kind: [] for kind in kinds}
            with ExitStack() as stack:
                subjects = [stack.enter_context(serve_subject(kind)) for kind in kinds]
                for _ in range(rounds):
                    for subject in subjects:
                        figures = run_clients(subject, operation, clients, seconds)
                        found[subject.kind].append(figures)
            middle = {kind: _middle(figures) for kind, figures in found.items()}
            data[f"{operation}, {clients}"] = middle
            tables.append(_rate_table(f"{operation}: {clients} client(s)", middle))
    return "\n\n".join(tables), data


def _middle(rounds: list[Figures]) -> Figures:
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}


def _rate_table(title: str, middle: dict[str, Figures]) -> str:
    peer = middle.get(PEER)
    rows = []
    for kind, label in KINDS.items():
        if kind not in middle:
            if not available(kind):
                rows.append([label, "torch is not installed", "", "", ""])
            continue
        figures = middle[kind]
        ratio = figures["rate"] / peer["rate"] if peer else None
        columns = [number(figures[name]) for name in ("rate", "p50_us", "p99_us")]
        columns.append("-" if ratio is None else number(ratio))
        rows.append([label, *columns])
    return render(title, ["", "ops/s", "p50 µs", "p99 µs", "of torch's"], rows)


def idle_clients(clients: int, seconds: float) -> tuple[str, object]:
    """Measure a server with many idle clients: one active client's rate, memory for each."""
    rows, data = [], {}
    counts = {"tcp": clients, "torch": min(clients, 100)}  # torch takes 0.2 s for each
    for kind, held_count in counts.items():
        if not available(kind):
            rows.append([KINDS[kind], "torch is not installed", "", "", "", ""])
            continue
        with serve_subject(kind) as subject:
            alone = run_clients(subject, "add", 1, seconds)["rate"]
            before = _memory(subject, "VmRSS")
            connect = holdfast.open_store if kind == "tcp" else torch_client
            held = [connect(subject.endpoint) for _ in range(held_count)]
            among = run_clients(subject, "add", 1, seconds)["rate"]
            grown = (_memory(subject, "VmRSS") - before) * 1024 / held_count
            threads = _memory(subject, "Threads")
            for store in held if kind == "tcp" else ():
                store.close()
        data[kind] = {"alone": alone, "among": among, "bytes": grown, "threads": threads}
        columns = [str(held_count), number(alone), number(among), number(grown), str(threads)]
        rows.append([KINDS[kind], *columns])
    head = ["", "idle clients", "add/s alone", "add/s among them", "bytes a client", "threads"]
    return render("many idle clients", head, rows), data


def wakeups(count: int) -> tuple[str, object]:
    """Measure from one process's `set` to another's return from a watch, or from a wait."""
    ways = {
        "tcp:// watch": ("tcp", "watch"),
        "tcp:// wait": ("tcp", "wait"),
        "torch TCPStore wait": (PEER, "wait"),
    }
    measured = {label: way for label, way in ways.items() if available(way[0])}
    times: dict[str, list[float]] = {label: [] for label in measured}
    with ExitStack() as stack:
        wake = {label: stack.enter_context(_waking(*way)) for label, way in measured.items()}
        for turn in range(count):  # taking turns: what the machine does meanwhile hits them alike
            for label, act in wake.items():
                times[label].append(act(turn))
    data = {label: _percentiles(found) for label, found in times.items()}
    peer = data.get("torch TCPStore wait")
    rows = []
    for label in ways:
        if label not in data:
            rows.append([label, "torch is not installed", "", ""])
            continue
        cells = [label, *map(number, data[label].values())]
        ratio = data[label]["p50_us"] / peer["p50_us"] if peer else None
        rows.append([*cells, "-" if ratio is None else number(ratio)])
    head = ["", "p50", "p99", "of torch's p50"]
    return render("wake-up latency, set to return, µs", head, rows), data


@contextmanager
def _waking(kind: str, operation: str) -> Iterator[Callable[[int], float]]:
    """Give a function that wakes a listener once and returns how many microseconds that took."""
    with serve_subject(kind) as subject:
        command = [sys.executable, "-m", "bench.listener", subject.endpoint, operation]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as listener:
            assert listener.stdin is not None
            assert listener.stdout is not None
            write, told, heard = acts(subject.endpoint, "set"), listener.stdin, listener.stdout

            def wake(turn: int) -> float:
                told.write("listen\n")
                told.flush()
                if heard.readline() != "listening\n":
                    raise SystemExit(f"a listener at {subject.endpoint} failed")
                time.sleep(0.002)  # let it block, so that waking up is what is measured
                began = time.perf_counter()
                write("watched" if operation == "watch" else f"turn/{turn}")
                return (float(heard.readline()) - began) * 1e6

            yield wake


def _percentiles(times: list[float]) -> Figures:
    times.sort()
    return {"p50_us": times[len(times) // 2], "p99_us": times[len(times) * 99 // 100]}


def memory() -> tuple[str, object]:
    """Measure what an idle server process takes."""
    rows, data = [], {}
    for kind in ("tcp", "torch"):
        if not available(kind):
            rows.append([KINDS[kind], "torch is not installed"])
            continue
        with serve_subject(kind) as subject:
            data[kind] = _memory(subject, "VmRSS") / 1024
        rows.append([KINDS[kind], number(data[kind])])
    return render("memory of an idle server process", ["", "MiB"], rows), data


def _memory(subject: Subject, field: str) -> int:
    for line in Path(f"/proc/{subject.pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise SystemExit(f"/proc says nothing about {field}")
