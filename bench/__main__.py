"""`python -m bench [NAME …] [--row ROW …] [--growth] [--quick]`: measure; print tables and aims."""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import growth, judge, rpc_torch
from bench.aims import AIMS, Aim
from bench.imports import imports
from bench.launch import agents, starting
from bench.machine import CORES, Machine, inspect, lacks
from bench.page import page
from bench.process_groups import groups
from bench.progress import say
from bench.recorder import recorder
from bench.recovery import recovery
from bench.rendezvous import joins, reforming
from bench.restart import QUICK as RESTART_QUICK
from bench.restart import WHOLE as RESTART_WHOLE
from bench.restart import restarts
from bench.rpc import QUICK, WHOLE, calls
from bench.rpc_threads import threads
from bench.rpc_values import values
from bench.rpc_worlds import worlds
from bench.stores import idle_clients, memory, rates, wakeups
from bench.tee import tee

RESULTS = Path(__file__).parent / "results"

GROWING = [
    ("worlds", ""),
    ("threads", "crowd"),
    ("restarts", "growth"),
    ("restarts", "others"),
    ("groups", ""),
]
"""What grows, and the part of it that shows how: peers, threads, workers, processes, ranks."""

Measurement = Callable[[bool, str], tuple[str, object]]
"""Measures, quickly or not, all of it or a part; returns tables and data."""


def measurements(machine: Machine) -> dict[str, Measurement]:
    """Return all measurements by name, in their order, as this machine can make them."""
    sizes = (16, 64, 128, 256) if machine.cores >= CORES else (4, 8, 16)
    return {
        "imports": lambda quick, _: imports(3 if quick else 9),
        "memory": lambda *_: memory(),
        "wakeups": lambda quick, _: wakeups(100 if quick else 1000),
        "idle": lambda quick, _: idle_clients(100 if quick else 1000, 0.3 if quick else 2.0),
        "groups": lambda quick, _: (
            groups((4, 16), 1, 100) if quick else groups((4, 16, 64), 5, 1000)
        ),
        "joins": lambda quick, _: joins((16, 64), 16) if quick else joins((16, 64, 128, 256), 256),
        "reforming": lambda quick, _: reforming(1 if quick else 5),
        "starting": lambda quick, _: starting(1 if quick else 9),
        "recorder": lambda quick, _: recorder(3, 20) if quick else recorder(41, 200),
        "recovery": lambda quick, _: recovery(2 if quick else 9),
        "warm": lambda quick, _: recovery(1 if quick else 5, "torch"),
        "restarts": lambda quick, part: restarts(RESTART_QUICK if quick else RESTART_WHOLE, part),
        "agents": lambda quick, _: agents(1 if quick else 10),
        "tee": lambda quick, _: tee(1, 20, 20) if quick else tee(5, 200, 100),
        "rpc": lambda quick, part: calls(QUICK if quick else WHOLE, part),
        "threads": lambda quick, part: (
            threads(0.3, 200, 1, part) if quick else threads(2.0, 2000, 3, part)
        ),
        "worlds": lambda quick, _: worlds(sizes[:2] if quick else sizes),
        "torch-rpc": lambda quick, part: rpc_torch.torch_calls(
            rpc_torch.QUICK if quick else rpc_torch.WHOLE, part
        ),
        "values": lambda quick, part: values(
            *((1, 0.05) if quick else (3, 0.5)), machine.networks, part
        ),
        "rates": lambda quick, part: rates(1 if quick else 3, 0.3 if quick else 1.0, part),
        "page": lambda quick, _: page(60 if quick else 900),
    }


def main() -> None:
    rows = {aim.name: aim for aim in AIMS}
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="measurements; without any, all")
    parser.add_argument(
        "--row", action="append", default=[], help="only what this row of the aims needs"
    )
    parser.add_argument("--quick", action="store_true", help="short runs: a check, not a figure")
    parser.add_argument(
        "--growth", action="store_true", help="only what grows: the exponent of each way"
    )
    given = parser.parse_args()
    machine = inspect()
    every = measurements(machine)
    for kind, names, known in (("measurement", given.names, every), ("row", given.row, rows)):
        for name in names:
            if name not in known:
                parser.error(f"no {kind} {name!r}; there are {', '.join(known)}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for a thousand clients, on each side
    print(f"{machine}\n")
    wanted = [rows[name] for name in given.row]
    plan = [(name, "") for name in given.names]
    plan += GROWING if given.growth else []
    plan += [(aim.measurement, aim.part) for aim in wanted if not lacks(machine, aim.needs)]
    everything = not (given.names or given.growth or wanted)
    plan = [(name, "") for name in every] if everything else list(dict.fromkeys(plan))
    data: dict[str, Any] = {}
    for turn, (name, part) in enumerate(plan, 1):
        say(f"[{turn} of {len(plan)}] {name} {part}".rstrip())
        text, found = every[name](given.quick, part)
        data[name] = _merged(data.get(name), found)
        if text:
            print(f"{text}\n", flush=True)
    of_named = [aim for aim in AIMS if aim.measurement in given.names]
    aims = list(AIMS) if everything else list(dict.fromkeys([*wanted, *of_named]))
    _conclude(machine, given.quick, aims, data)


def _merged(before: Any, found: Any) -> Any:
    """Return the data of two parts of one measurement, as one."""
    if not isinstance(before, dict) or not isinstance(found, dict):
        return before if isinstance(before, dict) else found
    return before | {key: _merged(before.get(key), value) for key, value in found.items()}


def _conclude(machine: Machine, quick: bool, aims: list[Aim], data: dict[str, Any]) -> None:
    """Print how figures grow and which aims are met, and write all of it to a file."""
    ways: dict[str, Any] = {}
    for found in data.values():
        ways |= found.get("growth", {}) if isinstance(found, dict) else {}
    judged = judge.judge(aims, data, partial(lacks, machine))
    for text in (growth.report(ways), judge.table(judged) if judged else ""):
        if text:
            print(f"{text}\n")
    run = {
        "machine": machine._asdict(),
        "quick": quick,
        "aims": [row._asdict() | {"of_aim": row.of_aim} for row in judged],
        "growth": ways,
        "measurements": data,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(run, indent=2) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
