"""Calls between real processes: nested, many, slow, failing, cancelled, cut off, and sent again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import CallTimedOut, PeerLost, RemoteError, UsageError
from holdfast.rpc import current
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.future import Future, wait_all
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.wire.worker_info import WorkerInfo
from tests.e2e import rpc_jobs as jobs
from tests.e2e.rpc_world import Workers, workers
from tests.waiting import until, with_more_time

pytestmark = pytest.mark.allow_leaks("the tests share workers, and with them open connections")

SOON = 30.0
FAST = RetryPolicy(max_retries=20, delay_s=0.01, backoff=1.0)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Agent, Workers]]:
    """Three workers, of which this process is one, for tests that kill no worker."""
    with workers(3) as (agent, others):
        current.set_agent(agent)
        try:
            yield agent, others
        finally:
            current.reset_agent()


@pytest.fixture
def agent(shared: tuple[Agent, Workers]) -> Agent:
    return shared[0]


def peer_of(agent: Agent, name: str) -> Peer:
    return agent.peer(name)


# Depth and width.


@pytest.mark.parametrize("job", [jobs.nested, jobs.nested_async])
def test_calls_nest_a_hundred_deep(agent: Agent, job: Callable[..., int]) -> None:
    assert agent.call("w1", job, ("w1", "w2", 100)) == 100
    assert agent.call("w1", job, ("w1", "w0", 100)) == 100
    assert agent.call("w0", job, ("w0", "w0", 30)) == 30


def test_a_slow_call_does_not_hold_up_the_others_on_its_pipe(agent: Agent) -> None:
    slow = [agent.call_async("w1", jobs.wait_at, (f"slow {n}",)) for n in range(3)]
    quick = [agent.call_async("w1", jobs.add, (n, 1)) for n in range(200)]
    assert wait_all(quick) == [n + 1 for n in range(200)]
    assert not any(future.done() for future in slow)
    for number in range(3):
        agent.call("w1", jobs.open_gate, (f"slow {number}",))
    assert wait_all(slow) == [1, 1, 1]


def test_three_hundred_calls_that_wait_for_each_other_finish(agent: Agent) -> None:
    """SR-3, WP-1."""
    for _ in range(2):  # the first time it is not known that they are slow
        met = [agent.call_async("w1", jobs.meet) for _ in range(300)]
        assert sorted(wait_all(met)) == list(range(300))


# What comes back.


def test_targets_are_names_numbers_or_infos_and_oneself(agent: Agent) -> None:
    for target in ("w1", 1, WorkerInfo("w1", 1), "w0", 0):
        assert agent.call(target, jobs.add, (1,), {"two": 2}) == 3
        assert agent.call_async(target, jobs.add, (1,)).wait() == 1
    with pytest.raises(UsageError, match="'nobody'"):
        agent.call("nobody", jobs.add, (1,))


def test_large_values_both_ways_at_once(agent: Agent) -> None:
    value = bytes(range(256)) * 20_000
    futures = [agent.call_async("w1", bytes, (value,)) for _ in range(12)]
    assert all(future.wait() == value for future in futures)
    assert len(agent.call("w1", jobs.big, (50_000_000,))) == 50_000_000


def test_async_execution_and_coroutines_answer_later(agent: Agent) -> None:
    for job in (jobs.later, jobs.coroutine):
        assert agent.call("w1", job, ("w2", 4)) == 50
        assert agent.call_async("w1", job, ("w0", 4)).wait() == 50
    assert agent.call("w1", jobs.nothing_later) == 5


def test_calls_can_be_awaited(agent: Agent) -> None:
    async def use() -> list[int]:
        futures = [agent.call_async("w1", jobs.add, (n, 1)) for n in range(50)]
        return [await future for future in futures]

    assert asyncio.run(use()) == list(range(1, 51))


def test_callbacks_run_without_a_waiting_thread_and_may_call(agent: Agent) -> None:
    done = threading.Event()
    seen: list[object] = []

    def more(future: Future[int]) -> int:
        return int(agent.call("w1", jobs.add, (future.value(), 1)))

    def wait_for_more(future: Future[int]) -> int:
        return int(agent.call_async("w1", jobs.add, (future.value(), 1)).wait())

    def tell(future: Future[int]) -> None:
        seen.append(future.value())
        done.set()

    agent.call_async("w1", jobs.add, (1,)).then(more).then(wait_for_more).add_done_callback(tell)
    assert done.wait(SOON)
    assert seen == [3]


def each_way(agent: Agent, job: Callable[..., Any], *args: object) -> Iterator[BaseException]:
    """Yield what a call raises, made in each way."""
    for target in ("w1", "w0"):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            agent.call(target, job, args)
        yield caught.value
        error = agent.call_async(target, job, args).exception(SOON)
        assert error is not None
        yield error


def test_a_remote_error_keeps_its_type_and_shows_where_it_was_raised(agent: Agent) -> None:
    for error in each_way(agent, jobs.fail, KeyError, "x", 3):
        assert type(error) is KeyError
        assert error.args == ("x", 3)
        note = "\n".join(error.__notes__)
        assert "in fail" in note
        assert "raise kind(*args)" in note
        assert "name=w" in note


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        (jobs.Stubborn, ("x",)),
        (SystemExit, (3,)),
        (KeyboardInterrupt, ()),
        (GeneratorExit, ()),
    ],
)
def test_an_error_that_cannot_be_pickled_arrives_as_another_one(
    agent: Agent, kind: type[BaseException], args: tuple[object, ...]
) -> None:
    for error in each_way(agent, jobs.fail, kind, *args):
        assert type(error) is RemoteError
        assert error.type_name.endswith(kind.__name__)
        assert "in fail" in error.traceback_text
    assert agent.call("w1", jobs.add, (1,)) == 1


def test_an_error_that_cannot_be_made_from_its_arguments_comes_back_as_itself(agent: Agent) -> None:
    for error in each_way(agent, jobs.fail, jobs.Odd, 1, 2):
        assert type(error) is jobs.Odd
        assert str(error) == "1 and 2"


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_coroutine_that_fails_harms_no_other_one(agent: Agent, kind: type[BaseException]) -> None:
    for error in each_way(agent, jobs.coroutine_fails, kind):
        assert "async" in str(error)
    assert agent.call("w1", jobs.coroutine, ("w2", 4)) == 50


def test_a_value_that_cannot_be_pickled_is_an_error_and_no_call_hangs(agent: Agent) -> None:
    for error in each_way(agent, jobs.lock):
        assert isinstance(error, UsageError)
        assert "cannot be pickled" in str(error)
    with pytest.raises(UsageError, match="cannot be pickled"):
        agent.call("w1", jobs.add, (threading.Lock(),))
    with pytest.raises(UsageError, match="cannot be pickled"):
        agent.call_async("w1", jobs.add, (threading.Lock(),)).wait()
    assert agent.call("w1", jobs.add, (1,)) == 1


# Time.


def test_a_call_that_times_out_fails(agent: Agent) -> None:
    for target in ("w1", "w0"):
        with pytest.raises(CallTimedOut, match=r"RPC ran for more than set timeout \(\d+ ms\)"):
            agent.call(target, jobs.wait_at, (f"time {target}",), timeout=0.05)
        with pytest.raises(CallTimedOut, match="RPC ran for more than"):
            agent.call_async(target, jobs.wait_at, (f"time {target}",), timeout=0.05).wait()
        agent.call(target, jobs.open_gate, (f"time {target}",))
        assert agent.call(target, jobs.add, (1,), timeout=0) == 1


def test_a_limit_does_not_stay_with_the_connection(agent: Agent) -> None:
    def outlast(seconds: float) -> None:
        assert agent.call("w1", jobs.add, (1,), timeout=seconds) == 1
        gate = (f"late {seconds}",)
        opening = threading.Timer(2 * seconds, lambda: agent.call("w1", jobs.open_gate, gate))
        opening.start()
        assert agent.call("w1", jobs.wait_at, gate, timeout=0) == 1
        opening.join()

    with_more_time(outlast)


def test_nested_calls_inherit_the_remaining_time(agent: Agent) -> None:
    assert 0 < agent.call("w1", jobs.left, timeout=5) <= 5
    assert 0 < agent.call("w1", jobs.left_there, ("w2", 100), timeout=5) <= 5
    assert 0 < agent.call("w1", jobs.left_there, ("w2", 0), timeout=5) <= 5
    assert 0 < agent.call("w1", jobs.left_there, ("w2", 2), timeout=5) <= 2
    assert 0 < agent.call("w1", jobs.coroutine_deadline, ("w2",), timeout=5) <= 5
    assert agent.call("w1", jobs.left, timeout=0) == float("inf")


@pytest.mark.parametrize("wait", [True, False])
def test_a_coroutine_whose_caller_gave_up_is_cancelled(agent: Agent, wait: bool) -> None:
    name = f"cancel {wait}"
    job = jobs.coroutine_forever
    call = agent.call if wait else lambda *args, **rest: agent.call_async(*args, **rest).wait()
    with pytest.raises(CallTimedOut):
        call("w1", job, (name,), timeout=2.0)  # so that it has begun
    until(lambda: bool(agent.call("w1", jobs.counted, (f"{name} cancelled",))))


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon"])
def test_a_limit_that_is_none_is_refused(agent: Agent, timeout: Any) -> None:
    with pytest.raises(UsageError, match="timeout"):
        agent.call("w1", jobs.add, (1,), timeout=timeout)


# Sent again.


@pytest.mark.parametrize("resets", [1, 3])
def test_a_retried_call_runs_once_even_if_connections_break_while_it_runs(
    agent: Agent, resets: int
) -> None:
    name = f"once {resets}"
    result: list[object] = []
    caller = threading.Thread(
        target=lambda: result.append(agent.call("w1", jobs.wait_at, (name,), retries=FAST))
    )
    caller.start()
    for _ in range(resets):
        until(lambda: bool(agent.call("w1", jobs.counted, (name,), retries=FAST)))
        peer_of(agent, "w1").reset("Connection reset by peer (by the test)")
    agent.call("w1", jobs.open_gate, (name,), retries=FAST)
    caller.join()
    assert result == [1]
    assert agent.call("w1", jobs.counted, (name,)) == 1


def test_without_retries_a_broken_connection_fails_the_call(agent: Agent) -> None:
    future = agent.call_async("w1", jobs.wait_at, ("broken",))
    until(lambda: bool(agent.call("w1", jobs.counted, ("broken",))))
    peer_of(agent, "w1").reset("Connection reset by peer (by the test)")
    with pytest.raises(PeerLost, match="Connection reset by peer"):
        future.wait()
    agent.call("w1", jobs.open_gate, ("broken",))
    assert agent.call_async("w1", jobs.add, (1,)).wait() == 1


def test_answers_that_were_kept_are_forgotten_when_they_have_come(agent: Agent) -> None:
    for number in range(50):
        assert agent.call("w0", jobs.add, (number,), retries=FAST) == number
    until(lambda: agent._dispatcher._dedup.kept() == 0)


def test_retries_from_many_threads_all_succeed(agent: Agent) -> None:
    stop = threading.Event()
    often = replace(FAST, max_retries=200)

    def disturb() -> None:
        seen = 0
        while not stop.wait(0.02):
            if len(done) > seen:  # however slow they are, they get on
                seen = len(done)
                peer_of(agent, "w1").reset("Connection reset by peer (by the test)")

    def work(first: int) -> None:
        for number in range(first, first + 50):
            done.append(agent.call("w1", jobs.add, (number, 1), retries=often))

    done: list[int] = []
    disturber = threading.Thread(target=disturb)
    disturber.start()
    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 200, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    disturber.join()
    assert sorted(done) == list(range(1, 201))


def test_threads_and_descriptors_do_not_grow(agent: Agent) -> None:
    def use() -> None:
        wait_all([agent.call_async("w1", jobs.add, (n,)) for n in range(100)])
        for number in range(100):
            agent.call("w1", jobs.add, (number,))
        peer_of(agent, "w1").reset("Connection reset by peer (by the test)")

    use()
    before, there = jobs.process(), agent.call("w1", jobs.process)
    for _ in range(10):
        use()
    slack = 4  # connections that are ending
    until(
        lambda: all(now <= then + slack for now, then in zip(jobs.process(), before, strict=True))
    )
    until(
        lambda: all(
            now <= then + slack
            for now, then in zip(agent.call("w1", jobs.process), there, strict=True)
        )
    )
