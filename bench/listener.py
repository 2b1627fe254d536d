"""A process that listens: `python -m bench.listener ENDPOINT watch|wait COUNT`.

Says "listening" each time before it waits, and then when it woke up: the clock is the same in all
processes of a machine.
"""

from __future__ import annotations

import sys
import time

import holdfast
from bench.client import torch_client


def main() -> None:
    endpoint, operation, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if endpoint.startswith("torch://"):
        client = torch_client(endpoint)
        for turn in range(count):
            print("listening", flush=True)
            client.wait([f"turn/{turn}"])
            print(time.perf_counter(), flush=True)
        return
    with holdfast.open_store(endpoint) as store, store.watch("watched") as watch:
        for turn in range(count):
            print("listening", flush=True)
            if operation == "watch":
                watch.next()
            else:
                store.wait([f"turn/{turn}"])
            print(time.perf_counter(), flush=True)


if __name__ == "__main__":
    main()
