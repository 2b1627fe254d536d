"""RPC between two workers of one machine: one call, many at once, large ones; beside torch's."""

from __future__ import annotations

import os
import pickle
import socket
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from bench.subjects import available
from bench.table import number, render
from holdfast.launch.config import LaunchConfig
from holdfast.launch.launcher import elastic_launch

__all__ = ["calls"]

IN_FLIGHT = 64
LIMIT = "limit: raw socket and pickle"
Call = Callable[..., Any]


def nothing() -> None:
    """Do nothing, over there."""


def same(value: Any) -> Any:
    return value


def calls(number_of: int, megabytes: tuple[int, ...]) -> tuple[str, object]:
    """Measure synchronous calls, pipelined ones, and echoes of large arrays."""
    subjects: dict[str, Call] = {LIMIT: raw, "holdfast": holdfast}
    if available("torch"):
        subjects["torch"] = torch
    data: dict[str, dict[str, float]] = {}
    for name, work in subjects.items():
        config = LaunchConfig(1, 1, 2, rdzv_endpoint="localhost:0", max_restarts=0)
        data[name] = elastic_launch(config, work)(number_of, megabytes)[0]
    head = ["", *data["holdfast"]]
    rows = []
    for name, figures in data.items():
        cells = [number(figures[column]) if column in figures else "" for column in head[1:]]
        rows.append([name, *cells])
    if "torch" in data:
        ours, theirs = data["holdfast"], data["torch"]
        ratios = [
            number(ours[column] / theirs[column]) if column in theirs else "" for column in head[1:]
        ]
        rows.append(["holdfast / torch", *ratios])
    else:
        rows.append(["torch", "is not installed", *[""] * (len(head) - 2)])
    return render("RPC: two workers of one machine", head, rows), data


def measured(
    sync: Call, start: Call, wait: Call, echo: Call, number_of: int, megabytes: tuple[int, ...]
) -> dict[str, float]:
    """Run the same measurements for every subject."""
    for _ in range(100):
        sync()
    taken = []
    for _ in range(number_of):
        began = time.perf_counter()
        sync()
        taken.append(time.perf_counter() - began)
    taken.sort()
    figures = {
        "call p50, µs": statistics.median(taken) * 1e6,
        "p99, µs": taken[len(taken) * 99 // 100] * 1e6,
    }
    began = time.perf_counter()
    open_: deque[Any] = deque()
    for _ in range(number_of):
        open_.append(start())
        if len(open_) >= IN_FLIGHT:
            wait(open_.popleft())
    while open_:
        wait(open_.popleft())
    figures["pipelined, calls/s"] = number_of / (time.perf_counter() - began)
    for size in megabytes:
        best = []
        for _ in range(5):
            began = time.perf_counter()
            echo(size << 20)
            best.append(time.perf_counter() - began)
        figures[f"{size} MB echo, ms"] = statistics.median(best) * 1e3
    return figures


def holdfast(number_of: int, megabytes: tuple[int, ...]) -> dict[str, float] | None:
    """Measure ours."""
    from holdfast.rpc import api as rpc

    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}")
    try:
        if rank:
            return None
        import numpy as np

        def echo(size: int) -> None:
            rpc.rpc_sync("worker1", same, (np.zeros(size, dtype=np.uint8),))

        return measured(
            lambda: rpc.rpc_sync("worker1", nothing),
            lambda: rpc.rpc_async("worker1", nothing),
            lambda future: future.wait(),
            echo,
            number_of,
            megabytes,
        )
    finally:
        rpc.shutdown()


def torch(number_of: int, megabytes: tuple[int, ...]) -> dict[str, float] | None:
    """Measure torch's."""
    import torch as t
    from torch.distributed import rpc

    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    try:
        if rank:
            return None
        return measured(
            lambda: rpc.rpc_sync("worker1", nothing),
            lambda: rpc.rpc_async("worker1", nothing),
            lambda future: future.wait(),
            lambda size: rpc.rpc_sync("worker1", same, (t.zeros(size, dtype=t.uint8),)),
            max(200, number_of // 10),
            megabytes,
        )
    finally:
        rpc.shutdown()


def raw(number_of: int, megabytes: tuple[int, ...]) -> dict[str, float] | None:
    """Measure what a Unix socket and pickle alone take, between two processes."""
    if int(os.environ["RANK"]):
        return None
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        while data := theirs.recv(4096):
            function, args = pickle.loads(data)
            theirs.send(pickle.dumps(function(*args), 5))
        os._exit(0)
    theirs.close()
    taken = []
    for _ in range(number_of):
        began = time.perf_counter()
        ours.send(pickle.dumps((nothing, ()), 5))
        pickle.loads(ours.recv(4096))
        taken.append(time.perf_counter() - began)
    ours.close()
    os.waitpid(child, 0)
    taken.sort()
    figures = {
        "call p50, µs": statistics.median(taken) * 1e6,
        "p99, µs": taken[len(taken) * 99 // 100] * 1e6,
    }
    for size in megabytes:
        source, target = bytearray(size << 20), bytearray(size << 20)
        best = []
        for _ in range(5):
            began = time.perf_counter()
            target[:] = source
            source[:] = target
            best.append(time.perf_counter() - began)
        figures[f"{size} MB echo, ms"] = statistics.median(best) * 1e3
    return figures
