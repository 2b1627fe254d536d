"""A process that listens: `python -m bench.listener ENDPOINT watch|wait`.

For each line on its standard input it says "listening", waits, and then says when it woke up: the
clock is the same in all processes of a machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import holdfast
from bench.client import torch_client


def listen(wait: Callable[[int], object]) -> None:
    """Wait once for each line."""
    for turn, _ in enumerate(sys.stdin):
        print("listening", flush=True)
        wait(turn)
        print(time.perf_counter(), flush=True)


def main() -> None:
    endpoint, operation = sys.argv[1:]
    if endpoint.startswith("torch://"):
        client = torch_client(endpoint)
        listen(lambda turn: client.wait([f"turn/{turn}"]))
        return
    with holdfast.open_store(endpoint) as store, store.watch("watched") as watch:
        listen(lambda turn: watch.next() if operation == "watch" else store.wait([f"turn/{turn}"]))


if __name__ == "__main__":
    main()
