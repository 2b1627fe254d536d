"""Worlds of many workers on one host: `init_rpc`, the first calls of all to all, shutdown.

`python -m bench.rpc_worlds SUBJECT WORKERS` forks the workers, which have done their imports
together, and prints the figures as one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.growth import series
from bench.progress import say
from bench.ranks import together
from bench.rpc import run
from bench.rpc_calls import nothing
from bench.rpc_workers import Holdfast, Torch, Workers
from bench.table import number, render

__all__ = ["worlds"]

SUBJECTS: dict[str, type[Workers]] = {"holdfast": Holdfast, "torch": Torch}
TORCH_MAX = 16
"""torch's worlds of 32 workers fail."""
FIGURES = {
    "init": "init_rpc, s",
    "calls": "first calls, s",
    "shutdown": "shutdown, s",
    "threads": "threads",
    "connections": "connections",
}


def worlds(sizes: tuple[int, ...]) -> tuple[str, object]:
    """Measure worlds of these sizes; threads and connections are the most that a worker has."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for size in sizes:
        found[str(size)] = of_size = {}
        for name, subject in SUBJECTS.items():
            if subject.installed() and (name == "holdfast" or size <= TORCH_MAX):
                say(f"a world of {size} workers, {subject.label}")
                of_size[name] = run("rpc_worlds", name, str(size))
    rows = []
    for size_, subjects in found.items():
        for name, figures in subjects.items():
            cells = [number(figures[one]) if one in figures else "failed" for one in FIGURES]
            rows.append([f"{size_} workers, {SUBJECTS[name].label}", *cells])
    growth: dict[str, dict[str, object]] = {}
    for figure in ("init", "calls", "shutdown"):
        by_count = {
            int(size_): subjects["holdfast"][figure]
            for size_, subjects in found.items()
            if figure in subjects["holdfast"]
        }
        growth[f"peers of a world: {figure}, s"] = {"holdfast": series(by_count)}
    text = render("RPC: worlds on one host", ["", *FIGURES.values()], rows)
    return text, {"figures": found, "growth": growth}


# In the process that measures.


def worker(subject: Any, size: int, url: str, rank: int) -> Iterator[int]:
    """Be one of the workers."""
    rpc = importlib.import_module(subject.functions)
    name = f"worker{rank}"
    options = subject().options(name, url) if subject is Holdfast else _torch_options(rpc, url)
    yield 0
    rpc.init_rpc(name, rank=rank, world_size=size, **options)
    yield 0
    others = [f"worker{other}" for other in range(size) if other != rank]
    for future in [rpc.rpc_async(other, nothing) for other in others]:
        future.wait()
    yield len(os.listdir("/proc/self/task"))
    yield _connections()
    rpc.shutdown()
    yield 0


def _torch_options(rpc: Any, url: str) -> dict[str, Any]:
    return {"rpc_backend_options": rpc.TensorPipeRpcBackendOptions(init_method=url)}


def _connections() -> int:
    """Return how many sockets this process has open."""
    kinds = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            kinds.append(os.readlink(descriptor))
        except FileNotFoundError:
            pass  # the descriptor of the listing itself
    return sum(re.match("socket:", kind) is not None for kind in kinds)


def main(name: str, size: str) -> None:
    subject = SUBJECTS[name]
    rpc = importlib.import_module(subject.functions)
    for function in ("init_rpc", "rpc_async", "shutdown"):
        getattr(rpc, function)  # ours are imported when they are asked for
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    count = int(size)
    init, calls, connections, shutdown = together(
        count, lambda rank: worker(subject, count, url, rank)
    )
    figures = {
        "init": init.seconds,
        "calls": calls.seconds,
        "shutdown": shutdown.seconds,
        "threads": calls.most,
        "connections": connections.most,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
