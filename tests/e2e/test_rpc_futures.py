"""Futures of calls between real processes: cancelled, awaited, chained, and left unread."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.errors import CallCancelled, UsageError
from holdfast.rpc import current
from holdfast.rpc.agent import Agent
from holdfast.rpc.api import async_execution, rpc_sync
from holdfast.rpc.client.future import Future, collect_all
from holdfast.rpc.rref.rref import RRef
from tests.e2e import rpc_jobs as jobs
from tests.e2e.rpc_world import Workers, workers
from tests.waiting import until

pytestmark = pytest.mark.allow_leaks("the tests share workers, and with them open connections")

SOON = 30.0


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Agent, Workers]]:
    """Three workers, of which this process is one, with long leases: one is stopped for a while."""
    with workers(3, lease_s=60.0) as (agent, others):
        current.set_agent(agent)
        try:
            yield agent, others
        finally:
            current.reset_agent()


@pytest.fixture
def agent(shared: tuple[Agent, Workers]) -> Agent:
    return shared[0]


def has_counted(agent: Agent, name: str) -> Callable[[], bool]:
    return lambda: agent.call("w1", jobs.counted, (name,)) == 1


def test_cancelling_a_call_cancels_the_coroutine_over_there(agent: Agent) -> None:
    future = agent.call_async("w1", jobs.coroutine_forever, ("forever",))
    until(has_counted(agent, "forever"))
    waiter = threading.Thread(target=future.exception, args=(SOON,))
    waiter.start()
    assert future.cancel()
    waiter.join(SOON)
    assert not waiter.is_alive()
    with pytest.raises(CallCancelled):
        future.wait()
    until(has_counted(agent, "forever cancelled"))


def test_cancelling_a_future_made_from_calls_cancels_the_calls(agent: Agent) -> None:
    names = [f"of many {number}" for number in range(3)]
    futures = [agent.call_async("w1", jobs.coroutine_forever, (name,)) for name in names]
    together = collect_all([future.then(lambda done: done.value()) for future in futures])
    for name in names:
        until(has_counted(agent, name))
    assert together.cancel()
    assert all(future.cancelled() for future in futures)
    for name in names:
        until(has_counted(agent, f"{name} cancelled"))


def test_a_function_that_runs_goes_on_and_its_result_is_dropped(agent: Agent) -> None:
    future = agent.call_async("w1", jobs.wait_at, ("running",))
    until(has_counted(agent, "running"))
    assert future.cancel()
    assert isinstance(future.exception(SOON), CallCancelled)
    agent.call("w1", jobs.open_gate, ("running",))
    pipe = agent.peer("w1")._pipe
    assert pipe is not None
    until(lambda: pipe.under_way == (0, 0))
    assert agent.call_async("w1", jobs.add, (1, 2)).wait(SOON) == 3


def give_at(name: str) -> RRef[list[int]]:
    jobs.wait_at(name)
    return RRef([1, 2, 3])


def references(agent: Agent) -> int:
    return sum(agent.rrefs.counts().values())


def their_references() -> int:
    return references(current.current_agent())


def test_a_reference_that_comes_after_the_cancel_is_not_kept(agent: Agent) -> None:
    future = agent.call_async("w1", give_at, ("reference",))
    until(has_counted(agent, "reference"))
    assert future.cancel()
    agent.call("w1", jobs.open_gate, ("reference",))
    until(lambda: agent.call("w1", their_references) == 0)
    until(lambda: references(agent) == 0)


def test_a_task_that_gives_up_cancels_the_call(agent: Agent) -> None:
    async def wait_for() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(agent.call_async("w1", jobs.coroutine_forever, ("late",)), 3.0)

    async def cancel() -> None:
        call = agent.call_async("w1", jobs.coroutine_forever, ("task",))
        task = asyncio.ensure_future(asyncio.gather(call))
        await asyncio.to_thread(until, has_counted(agent, "task"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for use, name in ((wait_for, "late"), (cancel, "task")):
        asyncio.run(use())
        until(has_counted(agent, f"{name} cancelled"))


async def wait_for_another(name: str) -> None:
    await current.current_agent().call_async("w1", jobs.coroutine_forever, (name,))


def test_cancelling_a_call_cancels_the_calls_that_it_has_made(agent: Agent) -> None:
    future = agent.call_async("w2", wait_for_another, ("another",))
    until(has_counted(agent, "another"))
    assert future.cancel()
    until(has_counted(agent, "another cancelled"))


def test_a_call_that_is_awaited_in_time_is_not_cancelled(agent: Agent) -> None:
    async def use() -> int:
        return await asyncio.wait_for(agent.call_async("w1", jobs.coroutine, ("w2", 4)), SOON)

    assert asyncio.run(use()) == 50


def test_errors_of_the_callee_go_through_chains(agent: Agent) -> None:
    def read(done: Future[int]) -> int:
        return done.value() + 1

    failing = agent.call_async("w1", jobs.fail, (KeyError, "x"))
    end = failing.then(read).then(read)
    caught = end.then(lambda done: type(done.exception()).__name__)
    assert caught.wait(SOON) == "KeyError"
    with pytest.raises(KeyError) as raised:
        end.wait(SOON)
    assert "in fail" in "".join(raised.value.__notes__)


async def big_at(name: str, size: int) -> bytes:
    jobs.count(name)
    await asyncio.to_thread(jobs.gate(name).wait, SOON)
    return bytes(size)


def ask_for_big(name: str, size: int) -> int:
    return len(rpc_sync("w1", big_at, (name, size)))


def ask_for_big_async(name: str, size: int) -> int:
    return len(current.current_agent().call_async("w1", big_at, (name, size)).wait())


@pytest.mark.parametrize("ask", [ask_for_big, ask_for_big_async])
def test_a_caller_that_does_not_read_holds_up_no_coroutine(
    shared: tuple[Agent, Workers], ask: Callable[[str, int], int]
) -> None:
    agent, others = shared
    name, size = ask.__name__, 32 << 20
    # In one piece of a pickle, so that it goes through the socket.
    asked = agent.call_async("w2", ask, (name, size))
    until(has_counted(agent, name))
    others.signal("w2", signal.SIGSTOP)
    try:
        agent.call("w1", jobs.open_gate, (name,))
        for _ in range(20):
            assert agent.call("w1", jobs.coroutine, ("w1", 4), timeout=SOON) == 50
    finally:
        others.signal("w2", signal.SIGCONT)
    assert asked.wait(SOON) == size


@async_execution
def give_futures(is_open: bool) -> Future[Any]:
    """Return a future of a future."""
    inner, outer = Future[int](), Future[Any]()
    if not is_open:
        inner.set_result(3)
    outer.set_result([inner])
    return outer


def test_fu4_a_future_within_a_future_arrives_if_it_is_complete(agent: Agent) -> None:
    (inner,) = agent.call("w1", give_futures, (False,))
    assert inner.wait() == 3
    with pytest.raises(UsageError, match="an open future cannot be sent"):
        agent.call("w1", give_futures, (True,))
    with pytest.raises(UsageError, match="an open future cannot be sent"):
        agent.call("w1", jobs.add, (Future(),))
