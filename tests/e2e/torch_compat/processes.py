"""Agents of torch's kind in processes of their own, forked from one that has torch already."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.e2e.reporting import TIMEOUT_S
from tests.e2e.torch_compat.agents import Node, new_run

FORKED = multiprocessing.get_context("forkserver")
"""Makes processes that have torch, and in which torch's names are ours."""
WITHIN_S = 3 * TIMEOUT_S
"""Workers import torch, which takes long where others want the processors too."""


@contextmanager
def forking(folder: Path) -> Iterator[None]:
    """Have the process that forks agents; what it imports, they need not."""
    vars(multiprocessing.current_process())["_config"]["tempdir"] = str(folder)
    FORKED.set_forkserver_preload(["tests.e2e.torch_compat.installed"])
    multiprocessing.forkserver.ensure_running()
    try:
        _wait_for_torch()
        yield
    finally:
        vars(multiprocessing.forkserver)["_forkserver"]._stop()
        vars(multiprocessing.resource_tracker)["_resource_tracker"]._stop()


def _wait_for_torch() -> None:
    """Wait until the process that forks others has imported all: no test's time is for that."""
    first = FORKED.Process(target=_nothing)
    first.start()
    first.join(WITHIN_S)
    assert first.exitcode == 0
    first.close()


def _nothing() -> None:
    pass


class Forked:
    """A process of its own, which has the other end of a pipe as its last argument."""

    def __init__(self, target: Callable[..., None], *args: object) -> None:
        self._told, theirs = FORKED.Pipe()
        with theirs:
            self.process = FORKED.Process(target=target, args=(*args, theirs))
            self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(WITHIN_S)

    def close(self) -> None:
        self.kill()
        self.process.close()
        self._told.close()


class AgentProcess(Forked):
    """An agent that runs one node."""

    def __init__(self, node: Node, output: Path | None = None) -> None:
        super().__init__(_run, node, output)

    def returned(self) -> dict[int, Any]:
        """Wait for a good end; return what its workers have returned, by rank."""
        kind, what = self._ended()
        assert kind == "returned", what
        return dict(what)

    def raised(self, error: str) -> str:
        """Wait for the end by this error; return what it says."""
        kind, what = self._ended()
        assert kind == error, what
        return str(what)

    def _ended(self) -> tuple[str, Any]:
        assert self._told.poll(WITHIN_S), "it goes on and on"
        told: tuple[str, Any] = self._told.recv()
        self.process.join(WITHIN_S)
        assert self.process.exitcode == 0
        return told


def _run(node: Node, output: Path | None, telling: Connection) -> None:
    if output is not None:
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
    try:
        said: tuple[str, Any] = ("returned", node.returned())
    except Exception as error:
        said = (type(error).__name__, str(error))
    telling.send(said)


class Agents:
    """The agents of one job; all of them end with the test."""

    def __init__(self, node: Node) -> None:
        self._node = replace(node, run=new_run())
        self._all: list[AgentProcess] = []

    def start(self, *, output: Path | None = None, **fields: Any) -> AgentProcess:
        """Start one more; these fields of it are different."""
        rdzv = {**self._node.rdzv, **fields.pop("rdzv", {})}
        if self._node.backend == "c10d":
            rdzv["is_host"] = not self._all
        agent = AgentProcess(replace(self._node, rdzv=rdzv, **fields), output)
        self._all.append(agent)
        return agent

    def close(self) -> None:
        for agent in self._all:
            agent.close()
