"""Calls that are sent again between real workers under faults: each runs at most once.

The workers import this file too, so it does without pytest.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.errors import CallTimedOut, PeerLost
from holdfast.faults.plan import Action
from holdfast.faults.transport import FaultyTransport
from holdfast.rpc.agent import Agent
from holdfast.rpc.api import remote, rpc_async, rpc_sync
from holdfast.rpc.client.future import wait_all
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.current import current_agent
from holdfast.rpc.wire.messages import Kind
from holdfast.testing.rpcworld import rpc_workers
from tests.e2e import rpc_jobs as jobs
from tests.e2e.rpc_world import workers
from tests.waiting import until

WITHIN_S = 30.0
EACH = 40
POLICY = RetryPolicy(max_retries=100, delay_s=0.01, backoff=1.1, try_s=0.3)
STUBBORN = """
seed 5
drop PYTHON_CALL,PYTHON_REMOTE_CALL p=0.1
drop reply PYTHON_CALL,PYTHON_REMOTE_CALL p=0.1
fail PYTHON_CALL,PYTHON_REMOTE_CALL p=0.1
duplicate PYTHON_CALL,PYTHON_REMOTE_CALL p=0.1
reset PYTHON_CALL p=0.02
reset running PYTHON_CALL,PYTHON_REMOTE_CALL p=0.05
"""

ran: Counter[tuple[str, int, int]] = Counter()
_lock = threading.Lock()


class Total:
    """A value that counts what is added to it."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, number: int) -> int:
        self.value += number
        return self.value


def note(how: str, caller: int, number: int) -> int:
    with _lock:
        ran[how, caller, number] += 1
    return number * number


def notes_of(caller: int) -> Counter[tuple[str, int, int]]:
    with _lock:
        return Counter({key: count for key, count in ran.items() if key[1] == caller})


def error_of(act: Callable[[], Any]) -> Exception:
    try:
        value = act()
    except Exception as error:
        return error
    raise AssertionError(f"{value!r} came instead of an error")


def faulty() -> FaultyTransport:
    transport = current_agent().transport
    assert isinstance(transport, FaultyTransport)
    return transport


def tries(kind: Kind) -> int:
    return sum(fault.kind is kind for fault in faulty().plan.record)


@rpc_workers(4, plan=STUBBORN)
def test_however_often_they_are_sent_calls_run_once(rank: int) -> None:
    others = [f"worker{other}" for other in range(4) if other != rank]
    where = [others[number % 3] for number in range(EACH)]
    futures = [rpc_async(where[n], note, ("async", rank, n), retries=POLICY) for n in range(EACH)]
    made = [remote(where[n], note, ("remote", rank, n), retries=POLICY) for n in range(EACH)]
    squares = [n * n for n in range(EACH)]
    sync = [rpc_sync(where[n], note, ("sync", rank, n), retries=POLICY) for n in range(EACH)]
    assert sync == squares
    assert wait_all(futures) == squares
    for rref in made:
        rref._get_future().wait(WITHIN_S)
    assert [rref.to_here() for rref in made] == squares
    found: Counter[tuple[str, int, int]] = Counter()
    for other in others:
        found += rpc_sync(other, notes_of, (rank,), retries=POLICY)
    expected = {(how, rank, n) for how in ("sync", "async", "remote") for n in range(EACH)}
    assert set(found) == expected
    assert set(found.values()) == {1}
    fired = faulty().fired()
    for action in (Action.DROP, Action.FAIL, Action.DUPLICATE, Action.RESET):
        assert fired[action], fired
    # What was created once is counted once, and goes with its only reference.
    del rref, made
    counts = current_agent().rrefs.counts
    until(lambda: not any(counts().values()), counts)


@rpc_workers(2, plan="fail PYTHON_CALL,PYTHON_REMOTE_CALL to=worker1")
def test_a_call_that_gives_up_says_after_how_many_tries(rank: int) -> None:
    if rank:
        return
    policy = RetryPolicy(max_retries=3, delay_s=0.01, backoff=1.5)
    text = "The RPC has not succeeded after the specified number of max retries (3)."
    error = error_of(lambda: rpc_sync("worker1", note, ("x", 0, 0), retries=policy))
    assert isinstance(error, PeerLost)
    assert str(error).startswith(text)
    assert tries(Kind.PYTHON_CALL) == 4
    error = error_of(rpc_async("worker1", note, ("x", 0, 0), retries=policy).wait)
    assert str(error).startswith(text)
    assert tries(Kind.PYTHON_CALL) == 8
    rref = remote("worker1", note, ("x", 0, 0), retries=policy)
    assert isinstance(error_of(rref._get_future().wait), PeerLost)
    assert text in str(error_of(rref.to_here))
    assert tries(Kind.PYTHON_REMOTE_CALL) == 4


@rpc_workers(2, plan="drop PYTHON_CALL to=worker1")
def test_the_deadline_comes_before_the_last_try(rank: int) -> None:
    if rank:
        return

    def call() -> Any:
        return rpc_sync("worker1", note, ("x", 0, 0), timeout=0.3, retries=POLICY)

    def call_async() -> Any:
        return rpc_async("worker1", note, ("x", 0, 0), timeout=0.3, retries=POLICY).wait()

    for error in map(error_of, (call, call_async)):
        assert isinstance(error, CallTimedOut)
        assert "RPC ran for more than set timeout" in str(error)


@rpc_workers(2, plan="drop reply PYTHON_CALL times=3")
def test_methods_of_a_value_elsewhere_run_once(rank: int) -> None:
    if rank:
        return
    total = remote("worker1", Total)
    assert total.rpc_sync(retries=POLICY).add(1) == 1
    assert total.rpc_async(retries=POLICY).add(2).wait() == 3
    assert total.remote(retries=POLICY).add(3).to_here() == 6
    assert faulty().fired()[Action.DROP] == 3


@rpc_workers(2, plan="drop PYTHON_CALL to=worker1\nfail PYTHON_REMOTE_CALL to=worker1")
def test_what_is_pending_at_shutdown_resolves(rank: int) -> None:
    if rank:
        return
    slow = RetryPolicy(delay_s=1000.0)
    dropped = rpc_async("worker1", note, ("x", 0, 0), timeout=0, retries=slow)
    waiting = remote("worker1", note, ("x", 0, 0), timeout=0, retries=slow)
    heard: list[Exception] = []

    def call() -> None:
        act = "worker1", note, ("x", 0, 0), None, 0, slow
        heard.append(error_of(lambda: rpc_sync(*act)))

    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: tries(Kind.PYTHON_CALL) == 2)
    current_agent().close()
    thread.join(WITHIN_S)
    heard += [error_of(dropped.wait), error_of(waiting._get_future().wait)]
    text = "RPC Agent is no longer running on Node 0. Cannot retry message."
    assert [(type(error), str(error)) for error in heard] == [(PeerLost, text)] * 3


def test_a_new_incarnation_is_never_asked_for_what_the_old_one_may_have_run() -> None:
    insist = RetryPolicy(max_retries=1000, delay_s=0.02, backoff=1.0)

    def ask(agent: Agent) -> Any:
        return agent.call_async("w1", jobs.wait_at, ("never",), timeout=0, retries=insist)

    with workers(2) as (agent, others):
        before = agent.find("w1").incarnation
        pending = [ask(agent) for _ in range(3)]
        until(lambda: bool(agent.call("w1", jobs.counted, ("never",)) == 3))
        others.end("w1")
        others.start("w1")
        until(lambda: agent.find("w1").incarnation != before)
        for future in pending:
            lost = future.exception(WITHIN_S)
            assert isinstance(lost, PeerLost)
            assert lost.incarnation == before
        assert agent.call("w1", jobs.counted, ("never",)) == 0
