"""The test's side of `rendezvous_node.py`: where nodes meet, and the processes that they are."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.clock import Deadline
from holdfast.net.secret import new_secret
from holdfast.rendezvous.port import HeldPort
from holdfast.store.open import serve_store

PROGRAM = Path(__file__).with_name("rendezvous_node.py")
TIMEOUT_S = 60.0
"""How long anything may take; what takes longer does not come."""

PIPE_BYTES = 256 * 1024
"""Room for what a node says while nobody listens: one that cannot write stands still."""

FOREVER = {"keep_alive_interval": "20", "keep_alive_max_attempt": "30"}
"""A lease that outlasts every test: whoever counts as gone, it is not by silence."""
BRIEF = {"keep_alive_interval": "0.25", "keep_alive_max_attempt": "8"}
"""For those that are to be missed. A machine that is slow may lose them early; no test minds."""

Report = dict[str, Any]
_runs = itertools.count(1)


@dataclass(frozen=True)
class Place:
    """Where nodes meet. `hangs_up`: whether a closed connection tells that a node is gone."""

    backend: str
    endpoint: str
    config: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    hangs_up: bool = False
    run_id: str = field(default_factory=lambda: f"run-{os.getpid()}-{next(_runs)}")

    def using(self, **config: str) -> Place:
        """Return the place with more configuration."""
        return replace(self, config=self.config | config)

    @property
    def mortal(self) -> dict[str, str]:
        """The configuration of a node whose death is to be noticed in a test's time."""
        return FOREVER if self.hangs_up else BRIEF


@contextmanager
def built_in(folder: Path) -> Iterator[Place]:
    """Serve a store from this process."""
    secret = new_secret()
    with serve_store(secret=secret) as server:
        address = server.endpoint.removeprefix("tcp://")
        env = {"HOLDFAST_SECRET_FILE": _keep(secret.reveal(), folder)}
        yield Place("c10d", address, {"is_host": "false"}, env, hangs_up=True)


@contextmanager
def to_be_hosted(folder: Path) -> Iterator[Place]:
    """A free port; the node that is told `is_host=true` serves the store there."""
    held = HeldPort("127.0.0.1")
    try:
        env = {"HOLDFAST_SECRET_FILE": _keep(new_secret().reveal(), folder)}
        config = {"is_host": "false"}
        yield Place("c10d", f"127.0.0.1:{held.port}", config, env, hangs_up=True)
    finally:
        held.close()


def _keep(secret: str, folder: Path) -> str:
    path = folder / "secret"
    path.touch(mode=0o600)
    path.write_text(secret)
    return str(path)


class Node:
    """A process that takes part in a run."""

    def __init__(self, place: Place, nodes: tuple[int, int], config: dict[str, str]) -> None:
        wish: dict[str, Any] = {
            "backend": place.backend,
            "endpoint": place.endpoint,
            "run_id": place.run_id,
            "min_nodes": nodes[0],
            "max_nodes": nodes[1],
        }
        config = {"last_call_timeout": "0"} | FOREVER | place.config | config
        if "reconnect_within_s" in config:
            wish["reconnect_within_s"] = float(config.pop("reconnect_within_s"))
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(wish | {"config": config})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pipesize=PIPE_BYTES,
            env=os.environ | place.env,
        )
        self.said: list[Report] = []
        """Everything that it has reported, and has been read."""
        self._heard: set[int] = set()
        self._rest = b""

    @property
    def host(self) -> str:
        """What rounds call it."""
        return f"{os.uname().nodename}[{self.process.pid}]"

    def order(self, *words: object) -> None:
        """Tell it to do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, event: str, **fields: object) -> Report:
        """Wait for a report with these fields that has not been heard yet, and return it."""
        wanted = {"event": event, **fields}
        deadline = Deadline.after(TIMEOUT_S)
        while True:
            for index, said in enumerate(self.said):
                if index not in self._heard and said.items() >= wanted.items():
                    self._heard.add(index)
                    return said
            if not self._read(deadline):
                raise AssertionError(f"{self.host} did not say {wanted}; it said {self.said}")

    def hear_waiting(self, reason: str) -> Report:
        """Wait until it knows that the leader waits for this reason, or one that contains it."""
        while True:
            said = self.hear("RoundAwaited")
            if reason in said["reason"]:
                return said

    def do(self, *words: object) -> Report:
        """Tell it to do something and wait for what came of it."""
        self.order(*words)
        return self.did(words[0])

    def did(self, order: object) -> Report:
        """Wait for what came of an order."""
        return self.hear("did", order=order)

    def rounds(self) -> list[int]:
        """Return the rounds that it has been in, as far as has been read."""
        return [said["round"] for said in self.said if said["event"] == "RoundFormed"]

    def leave(self) -> None:
        """Let it leave in good order, and wait for its end."""
        self.order("leave")
        self.ended()

    def ended(self, status: int = 0) -> None:
        """Wait for the end of a process that leaves nothing behind."""
        left = self.hear("left")
        assert (left["clean"], left["leaks"]) == (True, [])
        assert self.process.wait(TIMEOUT_S) == status

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait for its end."""
        self.process.kill()
        self.process.wait(TIMEOUT_S)

    def stop(self) -> None:
        """Let it sleep: it says nothing more, and its connections stay open."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def wake(self) -> None:
        """Let it go on as if no time had passed."""
        self.process.send_signal(signal.SIGCONT)

    def discard(self) -> None:
        """End the process and its pipes, whatever it does."""
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # an order that it did not live to read

    def _read(self, deadline: Deadline) -> bool:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        if not select.select([fd], [], [], deadline.remaining())[0]:
            return False
        data = os.read(fd, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.said += map(json.loads, lines)
        return bool(data)


class Nodes:
    """Starts nodes of one run."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._all: list[Node] = []

    def start(self, least: int, most: int | None = None, **config: str) -> Node:
        """Start one that wants rounds of `least` to `most` nodes."""
        node = Node(self.place, (least, least if most is None else most), config)
        self._all.append(node)
        return node

    def lead(self, least: int, most: int | None = None, **config: str) -> Node:
        """Start the first one, and wait until it leads."""
        node = self.start(least, most, **config)
        node.order("next")
        node.hear_waiting(f"have 1 of {least}")
        return node

    def discard(self) -> None:
        """End those that are left."""
        for node in self._all:
            node.discard()


@contextmanager
def nodes_at(place: Place) -> Iterator[Nodes]:
    """Give what starts nodes at a place; none of them is left at the end."""
    nodes = Nodes(place)
    try:
        yield nodes
    finally:
        nodes.discard()


def next_round(nodes: list[Node], number: int, why: str = "") -> list[int]:
    """Let nodes meet in this round, all of them and nobody else; return their ranks."""
    for node in nodes:
        node.order("next", why)
    return met(nodes, number)


def met(nodes: list[Node], number: int) -> list[int]:
    """Wait until nodes that have asked are in this round, and agree on it; return their ranks."""
    found = [node.did("next") for node in nodes]
    assert [each.get("round") for each in found] == [number] * len(nodes), found
    ranks: list[int] = [each["rank"] for each in found]
    assert sorted(ranks) == list(range(len(nodes)))
    first = found[0]
    for node, each in zip(nodes, found, strict=True):
        assert each["size"] == len(nodes)
        assert (each["master"], each["hosts"]) == (first["master"], first["hosts"])
        assert each["hosts"][each["rank"]] == node.host
    return ranks
