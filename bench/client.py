"""A process of clients: `python -m bench.client ENDPOINT OPERATION THREADS SECONDS`.

Says "ready" when all its clients are connected, begins at a line on standard input, and then
prints what it measured as one line of JSON. `torch://host:port` stands for torch's own client.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import holdfast

Act = Callable[[str], object]

VALUE = b"v" * 64


def acts(endpoint: str, operation: str) -> Act:
    """Return a function that performs the operation on a key, over a connection of its own."""
    if endpoint.startswith("torch://"):
        return torch_act(endpoint, operation)
    store = holdfast.open_store(endpoint)
    match operation:
        case "add":
            return lambda key: store.add(key, 1)
        case "set":
            return lambda key: store.set(key, VALUE)
        case "get":
            return store.get
    raise SystemExit(f"unknown operation {operation}")


def torch_client(endpoint: str) -> Any:
    """Connect torch's own client."""
    host, _, port = endpoint.removeprefix("torch://").partition(":")
    distributed = importlib.import_module("torch.distributed")
    return distributed.TCPStore(
        host, int(port), None, False, timedelta(seconds=30), wait_for_workers=False
    )


def torch_act(endpoint: str, operation: str) -> Act:
    store = torch_client(endpoint)
    match operation:
        case "add":
            return lambda key: store.add(key, 1)
        case "set":
            return lambda key: store.set(key, "v" * 64)
        case "get":
            return store.get  # type: ignore[no-any-return]
    raise SystemExit(f"unknown operation {operation}")


def measure(act: Act, key: str, seconds: float, go: threading.Event, times: list[float]) -> None:
    """Perform the operation for a while and note how long each took."""
    go.wait()
    end = time.perf_counter() + seconds
    before = time.perf_counter()
    while before < end:
        act(key)
        after = time.perf_counter()
        times.append(after - before)
        before = after


def main() -> None:
    endpoint, operation, threads, seconds = sys.argv[1:5]
    go = threading.Event()
    times: list[list[float]] = [[] for _ in range(int(threads))]
    pool = []
    for number, own in enumerate(times):
        act = acts(endpoint, operation)
        key = f"bench/{number}"
        if operation == "get":
            acts(endpoint, "set")(key)
        act(key)  # the first call pays for connecting
        pool.append(
            threading.Thread(target=measure, args=(act, key, float(seconds), go, own), daemon=True)
        )
    for thread in pool:
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    go.set()
    for thread in pool:
        thread.join()
    every = sorted(time for own in times for time in own)
    figures = {
        "rate": len(every) / float(seconds),
        "p50_us": every[len(every) // 2] * 1e6,
        "p99_us": every[len(every) * 99 // 100] * 1e6,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
