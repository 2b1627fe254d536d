"""`python -m bench [NAME …] [--quick]`: run the measurements and print their tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path

from bench import rpc_torch
from bench.imports import imports
from bench.launch import agents, starting
from bench.recovery import recovery
from bench.rendezvous import joins, reforming
from bench.rpc import QUICK, WHOLE, calls
from bench.stores import idle_clients, memory, rates, wakeups
from bench.tee import tee

RESULTS = Path(__file__).parent / "results"

Measurement = Callable[[bool], tuple[str, object]]
MEASUREMENTS: dict[str, Measurement] = {
    "imports": lambda quick: imports(3 if quick else 9),
    "memory": lambda quick: memory(),
    "wakeups": lambda quick: wakeups(100 if quick else 1000),
    "idle": lambda quick: idle_clients(100 if quick else 1000, 0.3 if quick else 2.0),
    "joins": lambda quick: joins((16, 64), 16) if quick else joins((16, 64, 128, 256), 256),
    "reforming": lambda quick: reforming(1 if quick else 5),
    "starting": lambda quick: starting(1 if quick else 9),
    "recovery": lambda quick: recovery(2 if quick else 9),
    "warm": lambda quick: recovery(1 if quick else 5, "torch"),
    "agents": lambda quick: agents(1 if quick else 10),
    "tee": lambda quick: tee(1, 20, 20) if quick else tee(5, 200, 100),
    "rpc": lambda quick: calls(QUICK if quick else WHOLE),
    "torch-rpc": lambda quick: rpc_torch.torch_calls(rpc_torch.QUICK if quick else rpc_torch.WHOLE),
    "rates": lambda quick: rates(1 if quick else 3, 0.3 if quick else 1.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument("--quick", action="store_true", help="short runs: a check, not a figure")
    given = parser.parse_args()
    names = given.names or list(MEASUREMENTS)
    for name in names:
        if name not in MEASUREMENTS:
            parser.error(f"no measurement {name!r}; there are {', '.join(MEASUREMENTS)}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for a thousand clients, on each side
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores\n")
    data = {}
    for name in names:
        text, data[name] = MEASUREMENTS[name](given.quick)
        print(text + "\n", flush=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(data, indent=2) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
