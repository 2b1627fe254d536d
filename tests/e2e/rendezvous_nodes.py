"""The test's side of `rendezvous_node.py`: where nodes meet, and the processes that they are."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.net.secret import new_secret
from holdfast.rendezvous.port import HeldPort
from holdfast.store.open import serve_store
from tests.e2e.reporting import Report, ReportingProcess

PROGRAM = Path(__file__).with_name("rendezvous_node.py")
FOREVER = {"keep_alive_interval": "20", "keep_alive_max_attempt": "30"}
"""A lease that outlasts every test: no node counts as gone because it was silent."""
BRIEF = {"keep_alive_interval": "0.25", "keep_alive_max_attempt": "16"}
"""For those that are to be missed, and not before, though their machine is slow."""

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


class Node(ReportingProcess):
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
        for name in ("endpoint", "local_addr"):
            if name in config:
                wish[name] = config.pop(name)
        if "reconnect_within_s" in config:
            wish["reconnect_within_s"] = float(config.pop("reconnect_within_s"))
        command = [sys.executable, str(PROGRAM), json.dumps(wish | {"config": config})]
        super().__init__(command, place.env)

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
    """Let exactly these nodes meet in this round; return their ranks."""
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
