"""Rendezvous: time to join, store operations a node, re-formation after a kill.

`python -m bench.rendezvous NODES` joins that many nodes, threads of one process, and prints our
seconds as its last line. `python -m bench.rendezvous growth SIZE…` lets so many nodes join, restart
and meet at the exit, and prints how the seconds grow: the exponent of the size.
"""

from __future__ import annotations

import importlib
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import holdfast
from bench.subjects import ROOT, available
from bench.table import number, render
from holdfast.agent.exchange import meet_at_exit, say_done, swap
from holdfast.agent.roles import NodeInfo
from holdfast.clock import Deadline
from holdfast.rendezvous.handler import Rendezvous, Round
from holdfast.rendezvous.parameters import RendezvousParameters
from holdfast.rendezvous.registry import create_rendezvous

__all__ = ["joins", "reforming"]

TORCH_PATIENCE_S = 400.0
REFORM_PATIENCE_S = 60.0
JOIN_S = "600"


def join_ours(nodes: int) -> tuple[float, float]:
    """Let nodes join a store of this process; return seconds and store operations a node."""
    with holdfast.serve_store() as server:
        address = server.endpoint.removeprefix("tcp://")
        made: list[Any] = []

        def node() -> None:
            config = {"is_host": "false", "join_timeout": JOIN_S}
            rendezvous = create_rendezvous(
                RendezvousParameters("c10d", address, "bench", nodes, nodes, config=config)
            )
            made.append(rendezvous)
            rendezvous.next_round()

        seconds = _together(nodes, node)
        calls = server.status().calls / nodes
        _in_threads([rendezvous.shutdown for rendezvous in made])
        return seconds, calls


def join_torch(nodes: int) -> tuple[float, float]:
    """Let nodes join torch's dynamic rendezvous; operations are its reads and writes of state."""
    api = importlib.import_module("torch.distributed.elastic.rendezvous")
    registry = importlib.import_module("torch.distributed.elastic.rendezvous.registry")
    backend = importlib.import_module(
        "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend"
    ).C10dRendezvousBackend
    distributed = importlib.import_module("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    calls, lock = [0], threading.Lock()
    originals = backend.get_state, backend.set_state

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with lock:
                calls[0] += 1
            return method(*arguments, **options)

        return call

    backend.get_state, backend.set_state = map(counted, originals)
    try:

        def node() -> None:
            parameters = api.RendezvousParameters(
                backend="c10d",
                endpoint=f"127.0.0.1:{store.port}",
                run_id="bench",
                min_nodes=nodes,
                max_nodes=nodes,
                is_host="false",
                join_timeout=JOIN_S,
            )
            registry.get_rendezvous_handler(parameters).next_rendezvous()

        return _together(nodes, node), calls[0] / nodes
    finally:
        backend.get_state, backend.set_state = originals


def growth(sizes: tuple[int, ...]) -> str:
    """Measure join, restart and exit barrier at several sizes; return a table with exponents."""
    rows: list[list[str]] = []
    before: tuple[int, tuple[float, ...]] | None = None
    for nodes in sizes:
        times = _phases(nodes)
        cells = [number(seconds) for seconds in times]
        if before is not None:
            ratio = math.log(nodes / before[0])
            old = before[1]
            cells += [
                number(math.log(new / was) / ratio) for new, was in zip(times, old, strict=True)
            ]
        else:
            cells += [""] * len(times)
        rows.append([str(nodes), *cells])
        before = (nodes, times)
    head = ["nodes", "join s", "restart s", "exit s", "exponent", "of restart", "of exit"]
    return render("rendezvous: growth with the number of nodes, threads of one process", head, rows)


def _phases(nodes: int) -> tuple[float, float, float]:
    """Return the seconds until all nodes are in a round, in the next, and past its exit barrier."""
    with holdfast.serve_store() as server:
        address = server.endpoint.removeprefix("tcp://")
        made: list[Rendezvous] = []
        here: dict[int, Round] = {}

        def join() -> None:
            config = {"is_host": "false", "join_timeout": JOIN_S}
            rendezvous = create_rendezvous(
                RendezvousParameters("c10d", address, "bench", nodes, nodes, config=config)
            )
            made.append(rendezvous)
            rendezvous.next_round()

        def restart(one: Rendezvous) -> None:
            round_ = one.next_round("the bench")
            here[round_.rank] = round_
            swap(round_, NodeInfo("", 1), False, lambda: False, Deadline.after(REFORM_PATIENCE_S))

        def leave(round_: Round) -> None:
            deadline = Deadline.after(REFORM_PATIENCE_S)
            say_done(round_, deadline)
            meet_at_exit(round_, lambda: False, deadline)

        times = [
            _timed([join] * nodes),
            _timed([partial(restart, one) for one in made]),
            _timed([partial(leave, one) for one in here.values()]),
        ]
        _in_threads([rendezvous.shutdown for rendezvous in made])
        return times[0], times[1], times[2]


def _together(count: int, act: Callable[[], None]) -> float:
    return _timed([act] * count)


def _timed(acts: list[Callable[[], object]]) -> float:
    began = time.perf_counter()
    _in_threads(acts)
    return time.perf_counter() - began


def _in_threads(acts: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=act, daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def joins(sizes: tuple[int, ...], torch_limit: int) -> tuple[str, object]:
    """Measure joining at several sizes; torch in a process of its own, up to a size."""
    rows, data = [], {}
    for nodes in sizes:
        ours = _measure("ours", nodes)
        theirs = None
        if available("torch") and nodes <= torch_limit:
            try:
                theirs = _measure("torch", nodes)
            except subprocess.TimeoutExpired:
                rows.append(
                    [str(nodes), *map(number, ours), f"none in {TORCH_PATIENCE_S:g} s", "", ""]
                )
                continue
        data[nodes] = {"ours": ours, "torch": theirs}
        cells = [number(ours[0]), number(ours[1])]
        if theirs is None:
            cells += ["not run" if available("torch") else "torch is not installed", "", ""]
        else:
            cells += [number(theirs[0]), number(theirs[1]), number(theirs[0] / ours[0])]
        rows.append([str(nodes), *cells])
    head = ["nodes", "s", "ops a node", "torch s", "ops a node", "times faster"]
    return render("rendezvous: time to join, threads of one process", head, rows), data


def _measure(kind: str, nodes: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "bench.rendezvous", str(nodes), kind]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TORCH_PATIENCE_S, check=True
    )
    calls, seconds = done.stdout.split()[-2:]
    return float(seconds), float(calls)


# Re-formation: four processes and a spare; one of the four is killed.


def reforming(rounds: int) -> tuple[str, object]:
    """Measure from SIGKILL of a node to the next round at all of its members, spare included."""
    rows, data = [], {}
    for kind in ("ours", "torch"):
        if kind == "torch" and not available("torch"):
            rows.append(["torch", "torch is not installed"])
            continue
        try:
            times = sorted(_reform(kind) for _ in range(rounds if kind == "ours" else 1))
        except TimeoutError as error:
            rows.append([kind, str(error)])
            continue
        data[kind] = times[len(times) // 2]
        rows.append([kind, number(data[kind])])
    title = "rendezvous: SIGKILL of one of 4 nodes to the next round, one spare, default settings"
    return render(title, ["", "s"], rows), data


def _reform(kind: str) -> float:
    with ExitStack() as stack:
        server = stack.enter_context(holdfast.serve_store())
        address = server.endpoint.removeprefix("tcp://")
        if kind == "torch":
            distributed = importlib.import_module("torch.distributed")
            store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            address = f"127.0.0.1:{store.port}"
        command = [sys.executable, "-m", "bench.rendezvous", "node", kind, address]
        nodes = [
            stack.enter_context(
                subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(5)
        ]
        try:
            first = _rounds(nodes, "1", 4)
            victim = first[0]
            began = time.perf_counter()
            victim.send_signal(signal.SIGKILL)
            _rounds([node for node in nodes if node is not victim], "2", 4)
            return time.perf_counter() - began
        finally:
            for node in nodes:
                node.kill()


def _rounds(
    nodes: list[subprocess.Popen[str]], label: str, count: int
) -> list[subprocess.Popen[str]]:
    """Wait until this many nodes have said that they are in the round."""
    said: list[subprocess.Popen[str]] = []
    by_fd = {node.stdout.fileno(): node for node in nodes if node.stdout is not None}
    while len(said) < count:
        ready, _, _ = select.select(list(by_fd), [], [], REFORM_PATIENCE_S)
        if not ready:
            raise TimeoutError(f"none within {REFORM_PATIENCE_S:g} s")
        for fd in ready:
            if os.read(fd, 100).decode().split()[-1:] == [label]:
                said.append(by_fd[fd])
    return said


def node_ours(address: str) -> None:
    config = {"is_host": "false", "join_timeout": JOIN_S}
    rendezvous = create_rendezvous(
        RendezvousParameters("c10d", address, "bench", 4, 4, config=config)
    )
    while True:
        print(rendezvous.next_round().number, flush=True)
        while rendezvous.over() is None:
            time.sleep(0.02)


def node_torch(address: str) -> None:
    api = importlib.import_module("torch.distributed.elastic.rendezvous")
    registry = importlib.import_module("torch.distributed.elastic.rendezvous.registry")
    handler = registry.get_rendezvous_handler(
        api.RendezvousParameters(
            backend="c10d",
            endpoint=address,
            run_id="bench",
            min_nodes=4,
            max_nodes=4,
            is_host="false",
            join_timeout=JOIN_S,
        )
    )
    count = 0
    while True:
        handler.next_rendezvous()
        count += 1
        print(count, flush=True)
        while handler.num_nodes_waiting() == 0:  # as torch's agent does
            time.sleep(0.1)


def main() -> None:
    if sys.argv[1] == "node":
        (node_ours if sys.argv[2] == "ours" else node_torch)(sys.argv[3])
        return
    if sys.argv[1] == "growth":
        print(growth(tuple(map(int, sys.argv[2:]))), flush=True)
        os._exit(0)
    nodes = int(sys.argv[1])
    ours = len(sys.argv) < 3 or sys.argv[2] == "ours"
    seconds, calls = join_ours(nodes) if ours else join_torch(nodes)
    print(f"{calls:.2f}")
    print(f"{seconds:.3f}", flush=True)
    os._exit(0)  # torch's handlers keep threads


if __name__ == "__main__":
    main()
