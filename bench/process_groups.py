"""torch's process groups over a store: ours as the agent serves it, and torch's own.

`python -m bench.process_groups ROUNDS ADDS RANKS …` measures and prints the figures as one line of
JSON. It imports torch once and forks the ranks. Each store has a process of its own, as with an
agent, and everything is on loopback.

torch's client asks a name server for the name of the address that it connects to. So that no name
server is measured, this runs in a network of its own, where none can be reached, if the system
gives it one.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from bench.growth import series
from bench.progress import say
from bench.ranks import together
from bench.subjects import KINDS, ROOT, available, serve_subject
from bench.table import number, render

__all__ = ["groups"]

OURS, PEER = "store_server", "torch"
LIMIT_S = 120
APART = ("unshare", "--user", "--map-root-user", "--net")

Figures = dict[str, dict[str, list[float]]]
"""For each number of ranks, by its text, and each store: what each round gave."""


def groups(ranks: Sequence[int], rounds: int, adds: int) -> tuple[str, object]:
    """Measure `init_process_group` with a barrier, and `add` of all ranks together."""
    title = "torch's process groups, gloo, processes of one host"
    if not available(PEER):
        return render(title, ["", ""], [["", "torch is not installed"]]), {}
    apart = (
        APART if subprocess.run([*APART, "true"], stderr=-3, check=False).returncode == 0 else ()
    )
    command = [*apart, sys.executable, "-m", "bench.process_groups"]
    command += map(str, (rounds, adds, *ranks))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    data: dict[str, Any] = json.loads(done.stdout)
    init = _table(f"{title}: init_process_group and a barrier, s", data["init"])
    add = _table(f"{title}: add of all together, a second", data["add"])
    data["growth"] = {
        "ranks of a process group: init and barrier, s": _growth(
            data["init"], lambda _, taken: taken
        ),
        "ranks of a process group: one `add` of each, ms": _growth(
            data["add"], lambda ranks, rate: 1000 * ranks / rate
        ),
    }
    return f"{init}\n\n{add}", data


def _table(title: str, data: Figures) -> str:
    rows = []
    for ranks, found in data.items():
        ours, theirs = (statistics.median(found[kind]) for kind in (OURS, PEER))
        rows.append([f"{ranks} ranks", *map(number, (ours, theirs, ours / theirs))])
    return render(title, ["", KINDS[OURS], KINDS[PEER], "ratio"], rows)


def _growth(data: Figures, figure: Callable[[int, float], float]) -> dict[str, object]:
    return {
        name: series({int(n): figure(int(n), statistics.median(data[n][kind])) for n in data})
        for name, kind in (("holdfast", OURS), ("torch", PEER))
    }


# In the process that measures.


def main(rounds: int, adds: int, *counts: int) -> None:
    with socket.socket() as sock:  # in a new network, loopback is down
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh22x", b"lo", 1))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # else: that there is no name server
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # every rank is a client
    torch = importlib.import_module("torch.distributed")
    data: dict[str, Figures] = {"init": {}, "add": {}}
    for count in counts:
        found = {what: data[what].setdefault(str(count), {}) for what in data}
        for _ in range(rounds):
            for kind in (PEER, OURS):
                say(f"{count} ranks, {KINDS[kind]}")
                with serve_subject(kind) as subject:
                    at = subject.endpoint.removeprefix("torch://")
                    (joined,) = together(count, partial(_join, torch, at, ranks=count))
                with serve_subject(kind) as subject:
                    at = subject.endpoint.removeprefix("torch://")
                    (added,) = together(count, partial(_add, torch, adds, at))
                found["init"].setdefault(kind, []).append(joined.seconds)
                found["add"].setdefault(kind, []).append(count * adds / added.seconds)
    print(json.dumps(data))


def _join(torch: Any, address: str, rank: int, ranks: int) -> Iterator[int]:
    yield 0
    torch.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=ranks)
    torch.barrier()
    yield 0


def _add(torch: Any, adds: int, address: str, _rank: int) -> Iterator[int]:
    host, _, port = address.rpartition(":")
    limit = timedelta(seconds=LIMIT_S)
    store = torch.TCPStore(host, int(port), None, False, limit, wait_for_workers=False)
    store.add("sum", 1)
    yield 0
    for _ in range(adds):
        store.add("sum", 1)
    yield 0


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
