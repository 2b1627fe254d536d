"""What an agent shows of itself: numbers, words, and how long its threads wait."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from holdfast import rpc
from holdfast.errors import UsageError
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.future import wait_all
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.current import reset_agent, set_agent
from holdfast.rpc.metrics import InterpreterWait
from holdfast.rpc.values.pickling import dump
from holdfast.rpc.wire.hello import Purpose, WorkerHello
from holdfast.rpc.wire.memory import POOL_BYTES
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo
from tests.unit.rpc.world import KEY, Table, agents
from tests.waiting import until

SOON = 20.0
NUMBERS = (
    "agent.client_calls",
    "agent.client_active_calls",
    "agent.server_calls",
    "agent.server_active_calls",
    "agent.server_active_async_calls",
    "agent.retries_pending",
    "agent.receipts_kept",
    "agent.links",
    "agent.threads",
    "agent.pooled_bytes",
    "rref.num_owner_rrefs",
    "rref.num_forks",
    "rref.num_pending_users",
    "rref.num_pending_futures",
)

gate = threading.Event()
begun: list[str] = []


@pytest.fixture
def two() -> Iterator[list[Agent]]:
    gate.clear()
    begun.clear()
    with agents(None, None) as made:
        yield made
        gate.set()


def add(one: int, two: int) -> int:
    return one + two


def wait(name: str) -> str:
    begun.append(name)
    assert gate.wait(SOON)
    return name


async def wait_awake(name: str) -> str:
    import asyncio

    begun.append(name)
    assert await asyncio.to_thread(gate.wait, SOON)
    return name


def shows(agent: Agent, name: str, number: int) -> None:
    """Wait until an agent shows this number: its threads may have something to do yet."""
    until(lambda: agent.metrics()[f"agent.{name}"] == str(number))


# Numbers.


def test_every_number_is_there_and_nothing_else(two: list[Agent]) -> None:
    found = two[0].metrics()
    assert tuple(found) == NUMBERS
    assert all(type(number) is str and int(number) >= 0 for number in found.values())


def test_ig1_calls_are_counted_at_both_ends(two: list[Agent]) -> None:
    one, other = two
    for _ in range(3):
        one.call("w1", add, (1, 2))
        one.call_async("w1", add, (1, 2)).wait(SOON)
    assert one.metrics()["agent.client_calls"] == "6"
    assert one.metrics()["agent.client_calls"] == "6"  # looking is no call
    shows(other, "server_calls", 6)
    assert one.call("w1", add, (1, 2), retries=RetryPolicy()) == 3
    assert one.metrics()["agent.client_calls"] == "7"
    shows(other, "server_calls", 8)  # with the note that the answer is there
    assert one.metrics()["agent.server_calls"] == other.metrics()["agent.client_calls"] == "0"


def test_ig2_looking_changes_nothing(two: list[Agent]) -> None:
    one, other = two
    one.call("w1", add, (1, 2))
    shows(other, "server_calls", 1)
    seen = [
        {name: number for name, number in agent.metrics().items() if name.startswith("agent.")}
        for _ in range(2)
        for agent in two
    ]
    assert seen[:2] == seen[2:]
    assert one.debug_info().keys() == one.debug_info().keys()


def test_handled_messages_count_after_their_connection_has_ended(two: list[Agent]) -> None:
    one, other = two
    one.call("w1", add, (1, 2))
    one.call_async("w1", add, (1, 2)).wait(SOON)
    assert one.metrics()["agent.links"] == "2"
    one.peer("w1").reset("on purpose")
    until(lambda: not other.server.connections)
    assert other.metrics()["agent.server_calls"] == "2"
    assert one.metrics()["agent.links"] == "0"
    one.call("w1", add, (1, 2))
    shows(other, "server_calls", 3)


def test_a_call_under_way_is_counted_at_both_ends(two: list[Agent]) -> None:
    one, other = two
    caller = threading.Thread(target=one.call, args=("w1", wait, ("sync",)))
    caller.start()
    waiting = [one.call_async("w1", wait, (f"{n}",)) for n in range(2)]
    until(lambda: len(begun) == 3)
    assert one.metrics()["agent.client_active_calls"] == "3"
    assert other.metrics()["agent.server_active_calls"] == "3"
    assert one.metrics()["agent.server_active_calls"] == "0"  # of the same process, and not its own
    gate.set()
    caller.join()
    wait_all(waiting)
    assert one.metrics()["agent.client_active_calls"] == "0"
    shows(other, "server_active_calls", 0)


def test_answers_that_are_still_to_come(two: list[Agent]) -> None:
    one, other = two
    waiting = one.call_async("w1", wait_awake, ("a",))
    until(lambda: bool(begun))
    shows(other, "server_active_async_calls", 1)
    shows(other, "server_active_calls", 0)  # no thread waits for it
    gate.set()
    assert waiting.wait(SOON) == "a"
    assert other.metrics()["agent.server_active_async_calls"] == "0"


def test_calls_that_may_be_sent_again(two: list[Agent]) -> None:
    one, other = two
    policy = RetryPolicy(max_retries=1, delay_s=0.001)
    caller = threading.Thread(
        target=one.call, args=("w1", wait, ("sync",)), kwargs={"retries": policy}
    )
    caller.start()
    until(lambda: bool(begun))
    assert one.metrics()["agent.retries_pending"] == "1"
    assert other.metrics()["agent.receipts_kept"] == "0"
    gate.set()
    caller.join()
    assert one.metrics()["agent.retries_pending"] == "0"
    shows(other, "receipts_kept", 0)


def test_answers_are_kept_until_they_are_acknowledged(two: list[Agent]) -> None:
    other = two[1]
    caller = WorkerHello("w0", 0, "a life", other.rrefs.incarnation, Purpose.DIRECT)
    body, _ = dump((add, (1, 2), None))
    request = Message(Kind.PYTHON_CALL, 7, body, once=True)
    answers: list[Message] = []
    other._dispatcher.handle(caller, request, answers.append)
    assert len(answers) == 1
    assert other.metrics()["agent.receipts_kept"] == "1"
    other._dispatcher.died("a life")
    assert other.metrics()["agent.receipts_kept"] == "0"


def test_references(two: list[Agent]) -> None:
    one, other = two
    slow = one.remote("w1", wait, ("value",))
    until(lambda: bool(begun))
    assert one.metrics()["rref.num_pending_users"] == "1"
    assert other.metrics()["rref.num_owner_rrefs"] == "1"
    assert other.metrics()["rref.num_forks"] == "1"
    assert other.metrics()["rref.num_pending_futures"] == "1"
    gate.set()
    assert slow.to_here(SOON) == "value"
    until(slow.confirmed_by_owner)
    assert one.metrics()["rref.num_pending_users"] == "0"
    assert other.metrics()["rref.num_pending_futures"] == "0"
    del slow
    until(lambda: other.metrics()["rref.num_owner_rrefs"] == "0")
    assert other.metrics()["rref.num_forks"] == "0"


def test_threads_and_memory_of_the_process(two: list[Agent]) -> None:
    one, _ = two
    before = int(one.metrics()["agent.threads"])
    one.call_async("w1", len, (b"x",)).wait(SOON)
    assert int(one.metrics()["agent.threads"]) > before
    assert len(one.call("w1", memoryview, (bytes(POOL_BYTES),))) == POOL_BYTES  # and released
    assert int(one.metrics()["agent.pooled_bytes"]) >= POOL_BYTES


# Words.


def test_debug_info_has_the_metrics_and_the_connected_workers(two: list[Agent]) -> None:
    one, other = two
    one.call("w1", add, (1, 2))
    assert one.debug_info().keys() - set(NUMBERS) == {"agent.worker", "agent.peer.w1"}
    assert other.debug_info().keys() - set(NUMBERS) == {"agent.worker", "agent.caller.w0"}
    assert one.debug_info()["agent.worker"] == "WorkerInfo(id=0, name=w0)"
    one.call_async("w1", add, (1, 2)).wait(SOON)
    mode = "2 connections: unix, fetch by process_vm_readv"
    assert one.debug_info()["agent.peer.w1"] == mode
    until(lambda: other.debug_info()["agent.caller.w0"] == mode)


def test_connections_of_several_kinds_are_described_apart(
    two: list[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = two
    one.call("w1", add, (1, 2))
    one.call_async("w1", add, (1, 2)).wait(SOON)
    first, _ = one.peer("w1").connections
    monkeypatch.setattr(first.peer_memory, "open", False)
    monkeypatch.setattr(first.peer_memory, "_readable", 0)
    text = "1 connection: unix, fetch by process_vm_readv; 1 connection: unix, sockets"
    assert one.debug_info()["agent.peer.w1"] == text
    monkeypatch.setattr(first.peer_memory, "_readable", 1)
    assert "unix, fetch by process_vm_readv one way" in one.debug_info()["agent.peer.w1"]


def test_workers_of_other_machines_are_reached_by_tcp() -> None:
    with agents(None) as (one,):
        table = one._directory
        assert isinstance(table, Table)
        other = Agent(WorkerInfo("far", 1), table, KEY)
        other.start("127.0.0.1")
        try:
            assert other.contact is not None
            table.contacts.append(replace(other.contact, machine="another", unix=""))
            one.call("far", add, (1, 2))
            assert one.debug_info()["agent.peer.far"] == "1 connection: tcp"
        finally:
            other.close()


# How long threads wait for the interpreter.


def test_the_wait_is_shown_while_it_is_measured(two: list[Agent]) -> None:
    one, other = two
    assert "agent.gil_average_wait_time_us" not in one.debug_info()
    one.enable_gil_profiling(True)
    one.enable_gil_profiling(True)
    assert "agent.gil_average_wait_time_us" not in other.debug_info()
    assert float(one.debug_info()["agent.gil_average_wait_time_us"]) >= 0
    one.enable_gil_profiling(False)
    assert "agent.gil_average_wait_time_us" not in one.debug_info()
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("-gil")]


def test_a_thread_that_holds_the_interpreter_is_noticed() -> None:
    measured = InterpreterWait("test-gil", every_s=0.01)
    measured.switch(True)
    hold = ctypes.PyDLL(None).usleep  # unlike functions of CDLL it keeps the interpreter
    try:
        until(lambda: bool(measured.average_us()))
        sampler = measured._sampler
        assert sampler is not None
        before = sampler._noted[0]
        hold(300_000)
        until(lambda: sampler._noted[0] - before > 0.2)
    finally:
        measured.close()


def test_an_agent_that_is_shut_down_measures_nothing(two: list[Agent]) -> None:
    two[0].enable_gil_profiling(True)
    two[0].close()
    assert "agent.gil_average_wait_time_us" not in two[0].debug_info()
    with pytest.raises(UsageError, match="this agent has been shut down"):
        two[0].enable_gil_profiling(True)
    two[0].enable_gil_profiling(False)


# By the package.


def test_the_current_agent_shows_itself(two: list[Agent]) -> None:
    with pytest.raises(UsageError, match="Current RPC agent is not set!"):
        rpc.debug_info()
    set_agent(two[1])
    try:
        assert rpc.debug_info()["agent.worker"] == "WorkerInfo(id=1, name=w1)"
    finally:
        reset_agent()
