"""What a connected, idle peer costs: `python -m bench.rpc_idle hub|peers SUBJECT PEERS [FOLDER]`.

The hub calls each peer once and is called by it. It prints how much it grew by a peer, as one line
of JSON. The first peer does not count: with it come things that all share.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from pathlib import Path

from bench.rpc_callee import beside, serve
from bench.rpc_calls import nothing
from bench.rpc_workers import HUB, Holdfast, Torch, Workers, peer

__all__ = ["IDLE"]

IDLE: dict[str, type[Workers]] = {"holdfast": Holdfast, "torch": Torch}
SETTLE_S = 0.5
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def hub(name: str, peers: int) -> None:
    """Connect to all peers and say what that takes."""
    subject = IDLE[name](peers)
    with beside("bench.rpc_idle", "peers", name, str(peers)) as folder:
        subject.connect(folder)
        meet(subject, 0)
        before = footprint()
        for number in range(1, peers):
            meet(subject, number)
        after = footprint()
        print(json.dumps({what: (after[what] - before[what]) / (peers - 1) for what in before}))
        sys.stdout.flush()
    os._exit(0)  # torch's agent has no quick end


def meet(subject: Workers, number: int) -> None:
    """Call a peer, which calls back."""
    rpc = importlib.import_module(subject.functions)
    rpc.rpc_sync(peer(number), call_back, args=(subject.functions,))


def call_back(functions: str) -> None:
    importlib.import_module(functions).rpc_sync(HUB, nothing)


def footprint() -> dict[str, int]:
    """Say what this process has, once it is quiet."""
    time.sleep(SETTLE_S)
    gc.collect()
    return {
        "bytes": int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def serve_peers(name: str, peers: int, folder: str) -> None:
    """Serve as so many peers: processes that have done their imports together."""
    importlib.import_module(IDLE[name].functions)
    number = 0
    while number < peers - 1 and not os.fork():
        number += 1
    serve(IDLE[name](peers, number), folder)


def main(role: str, name: str, peers: str, *folder: str) -> None:
    if role == "hub":
        hub(name, int(peers))
    else:
        serve_peers(name, int(peers), *folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
