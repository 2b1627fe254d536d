"""Stores: operations a second, idle clients, wake-up latency, memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import holdfast
from bench.client import torch_client
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


def rates(rounds: int, seconds: float) -> tuple[str, object]:
    """Measure operations a second of every backend, with 1 and with 64 clients, taking turns."""
    tables, data = [], {}
    kinds = [kind for kind in KINDS if available(kind)]
    for clients in (1, 64):
        for operation in ("get", "set", "add"):
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
            rows.append([label, "torch is not installed", "", "", ""])
            continue
        figures = middle[kind]
        ratio = number(figures["rate"] / peer["rate"]) if peer else "-"
        columns = [number(figures[name]) for name in ("rate", "p50_us", "p99_us")]
        rows.append([label, *columns, ratio])
    return render(title, ["", "ops/s", "p50 µs", "p99 µs", "of torch's"], rows)


def idle_clients(clients: int, seconds: float) -> tuple[str, object]:
    """Measure a server with many idle clients: one active client's rate, memory for each."""
    rows, data = [], {}
    for kind in ("tcp", "torch"):
        if not available(kind):
            rows.append([KINDS[kind], "torch is not installed", "", "", ""])
            continue
        with serve_subject(kind) as subject, ExitStack() as stack:
            alone = run_clients(subject, "add", 1, seconds)["rate"]
            before = _memory(subject, "VmRSS")
            held = []
            for _ in range(clients):
                if kind == "tcp":
                    held.append(stack.enter_context(holdfast.open_store(subject.endpoint)))
                else:
                    held.append(torch_client(subject.endpoint))
            among = run_clients(subject, "add", 1, seconds)["rate"]
            grown = (_memory(subject, "VmRSS") - before) * 1024 / clients
            threads = _memory(subject, "Threads")
        data[kind] = {"alone": alone, "among": among, "bytes": grown, "threads": threads}
        columns = [number(alone), number(among), number(grown), str(threads)]
        rows.append([KINDS[kind], *columns])
    head = ["", "add/s alone", "add/s among them", "bytes a client", "threads"]
    return render(f"{clients} idle clients", head, rows), data


def wakeups(count: int) -> tuple[str, object]:
    """Measure from one client's `set` to another's return from a watch, or from a wait."""
    rows, data = [], {}
    with serve_subject("tcp") as subject:
        writer, reader = (holdfast.open_store(subject.endpoint) for _ in range(2))
        with writer, reader:
            with reader.watch("w") as watch:
                found = _latencies(
                    count, lambda n: writer.set("w", b"%d" % n), lambda n: watch.next()
                )
            data["watch"] = found
            rows.append(["tcp:// watch", *map(number, found.values())])
            found = _latencies(
                count, lambda n: writer.set(f"k{n}", b""), lambda n: reader.wait([f"k{n}"])
            )
            data["wait"] = found
            rows.append(["tcp:// wait", *map(number, found.values())])
    if available("torch"):
        with serve_subject("torch") as subject:
            sender, receiver = torch_client(subject.endpoint), torch_client(subject.endpoint)
            found = _latencies(
                count,
                lambda n: sender.set(f"k{n}", ""),
                lambda n: receiver.wait([f"k{n}"]),
            )
            data["torch"] = found
            rows.append(["torch TCPStore wait", *map(number, found.values())])
    else:
        rows.append(["torch TCPStore wait", "torch is not installed", ""])
    return render("wake-up latency, set to return, µs", ["", "p50", "p99"], rows), data


def _latencies(
    count: int, send: Callable[[int], object], receive: Callable[[int], object]
) -> Figures:
    """Time `receive` in a thread, from the moment that `send` begins."""
    times, turn, seen = [], threading.Semaphore(0), threading.Semaphore(0)
    arrived = [0.0]

    def listen() -> None:
        for n in range(count):
            turn.release()
            receive(n)
            arrived[0] = time.perf_counter()
            seen.release()

    thread = threading.Thread(target=listen)
    thread.start()
    for n in range(count):
        turn.acquire()
        time.sleep(0.002)  # let the listener block, so that waking up is what is measured
        began = time.perf_counter()
        send(n)
        seen.acquire()
        times.append((arrived[0] - began) * 1e6)
    thread.join()
    times.sort()
    return {"p50_us": times[count // 2], "p99_us": times[count * 99 // 100]}


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
