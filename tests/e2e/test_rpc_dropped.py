"""An agent without references ends by itself, and does not block the exit."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import PeerLost
from holdfast.faults.backends import make_faulty
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.wire.worker_info import WorkerInfo
from tests.unit.rpc.world import KEY, Table, agents
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SOON = 30.0

gate = threading.Event()
begun: list[str] = []


def wait(name: str) -> str:
    begun.append(name)
    assert gate.wait(SOON)
    return name


def same(value: object) -> object:
    return value


async def wait_awake(name: str) -> str:
    begun.append(name)
    await asyncio.Event().wait()
    return name


@pytest.fixture
def other() -> Iterator[Agent]:
    gate.clear()
    begun.clear()
    with agents(None) as (made,):
        yield made
        gate.set()


def make(other: Agent, plan: str | None = None) -> Agent:
    """Start an agent `x`, which the other one knows."""
    table = other._directory
    assert isinstance(table, Table)
    transport = None if plan is None else make_faulty({"plan": plan})
    agent = Agent(WorkerInfo("x", 7), table, KEY, transport=transport)
    agent.start("127.0.0.1")
    assert agent.contact is not None
    table.contacts.append(agent.contact)
    return agent


def threads() -> list[str]:
    """Return the threads of `x`, and of what carries its messages."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("holdfast-rpc-x-", "holdfast-faults"))]


def is_over() -> bool:
    """Say whether no thread of `x` is left; one that is about to end may have kept it so far."""
    gc.collect()
    return not threads()


def is_gone(ref: weakref.ref[Agent]) -> bool:
    """Say whether no reference is left; a thread that is about to end may have had one."""
    gc.collect()
    return ref() is None


def test_waiting_callers_fail_when_the_agent_is_gone(other: Agent) -> None:
    agent = make(other)
    waiting = [other.call_async("x", wait, ("async",)), other.call_async("x", wait_awake, ("b",))]
    failed: list[PeerLost] = []

    def call() -> None:
        with pytest.raises(PeerLost) as caught:
            other.call("x", wait, ("sync",))
        failed.append(caught.value)

    caller = threading.Thread(target=call)
    caller.start()
    until(lambda: len(begun) == 3)
    del agent
    gc.collect()
    for future in waiting:
        with pytest.raises(PeerLost, match="Connection (closed|reset) by peer"):
            future.wait(SOON)
    caller.join(SOON)
    assert failed
    gate.set()  # only now do the handlers end
    until(is_over)
    with pytest.raises(PeerLost):
        other.call("x", wait, ("again",))


def test_all_that_it_has_begun_ends(other: Agent) -> None:
    agent = make(other, "delay PYTHON_CALL seconds=0.001")
    agent.enable_gil_profiling(True)
    agent.call("w0", len, ("abc",))
    agent.call_async("w0", len, ("abc",)).wait(SOON)
    agent.call("w0", len, ("abc",), retries=RetryPolicy())
    agent.call("x", len, ("abc",))
    other.call("x", len, ("abc",))
    other.call_async("x", len, ("abc",)).wait(SOON)
    _ = other.call_async("x", wait_awake, ("b",))
    kept = agent.remote("w0", list)
    owned = agent.remote("x", same, (kept,))  # and a thread that serves others can reach it
    counts = agent.rrefs.counts
    until(lambda: counts()["owners"] == 1)
    until(lambda: bool(begun))
    ended = weakref.ref(agent)
    assert len(threads()) > 8
    del agent
    until(is_over)
    until(lambda: is_gone(ended))
    until(lambda: not other.server.connections)
    for reference in (kept, owned):
        with pytest.raises(PeerLost, match=r"\(this agent has been shut down\)"):
            reference.rpc_sync().append(1)


def test_a_call_of_its_own_keeps_it_until_it_is_answered(other: Agent) -> None:
    agent = make(other)
    futures = [
        agent.call_async("w0", wait, ("plain",)),
        agent.call_async("w0", wait, ("insisting",), retries=RetryPolicy()),
    ]
    until(lambda: len(begun) == 2)
    del agent
    gc.collect()
    assert threads()
    gate.set()
    assert [future.wait(SOON) for future in futures] == ["plain", "insisting"]
    del futures
    gc.collect()
    until(is_over)


def test_it_may_be_collected_while_its_own_locks_are_held(other: Agent) -> None:
    agent = make(other)
    other.call("x", len, ("abc",))
    locks: list[Any] = [
        agent._lock,
        agent._server._lock,
        agent._dispatcher._lock,
        agent._retrying.changed,
    ]
    left = [agent]

    def drop() -> None:
        for lock in locks:
            lock.acquire()
        left.clear()
        gc.collect()  # here, as any allocation may
        for lock in locks:
            lock.release()

    dropping = threading.Thread(target=drop, daemon=True)
    del agent
    dropping.start()
    dropping.join(SOON)
    assert not dropping.is_alive()
    until(is_over)


def test_one_that_was_closed_or_never_started_is_dropped_without_a_word(other: Agent) -> None:
    agent = make(other)
    agent.close()
    table = other._directory
    assert isinstance(table, Table)
    never = Agent(WorkerInfo("y", 8), table, KEY)
    gone = weakref.ref(agent), weakref.ref(never)
    before = threading.active_count()
    del agent, never
    for ref in gone:
        until(lambda ref=ref: is_gone(ref))  # type: ignore[misc]
    assert threading.active_count() <= before


AT_THE_EXIT = """
import asyncio, contextlib, gc, sys, threading
from holdfast.errors import PeerLost
from holdfast.rpc.agent import Agent
from holdfast.rpc.wire.worker_info import WorkerInfo
from tests.unit.rpc.world import KEY, Table

begun = threading.Semaphore(0)

def wait():
    begun.release()
    threading.Event().wait(60)

async def wait_awake():
    begun.release()
    await asyncio.sleep(60)

def call(agent):
    with contextlib.suppress(PeerLost):
        agent.call("b", wait)

table = Table()
one, other = (Agent(WorkerInfo(name, n), table, KEY) for n, name in enumerate("ab"))
for agent in (one, other):
    agent.start()
    table.contacts.append(agent.contact)
one.enable_gil_profiling(True)
kept = one.remote("b", list)
kept.to_here()
open_calls = [one.call_async("b", wait), one.call_async("b", wait_awake)]
threading.Thread(target=call, args=(one,), daemon=True).start()
for _ in range(3):
    assert begun.acquire(timeout=30)
if sys.argv[1] == "dropped":
    del agent, one, other
    gc.collect()
"""


@pytest.mark.parametrize("how", ["held", "dropped"])
def test_a_process_that_ends_does_not_wait_for_its_agents(how: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(AT_THE_EXIT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), how],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
