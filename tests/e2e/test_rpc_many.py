"""Many at once: workers of one host, references over four of them, and calls within calls."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.errors import Overloaded
from holdfast.rpc import current
from holdfast.rpc.api import remote, rpc_async, rpc_sync
from holdfast.rpc.client.future import wait_all
from holdfast.rpc.rref.rref import RRef
from holdfast.testing.rpcworld import run_workers
from tests.e2e import rpc_jobs as jobs
from tests.e2e.rpc_world import workers

WORKERS = 64
REFERENCES, OWNERS = 10_000, 4
BATCH = 125
TOO_DEEP = 1_500
NESTED_MIB, AGAIN_MIB = 400, 50
"""More than twice as much as it takes; it took 2,500 when errors doubled at each worker."""
ERROR_MAX = 100_000
WITHIN_S = 120.0
PATIENT_S = 60.0
"""So many processes may leave one of them without a processor for many seconds."""


def test_sixty_four_workers_call_each_other_all_at_once() -> None:
    """R3: each calls all, waiting and not, and is called back while it waits; no call hangs."""
    names = [f"w{number}" for number in range(WORKERS)]
    with workers(WORKERS, lease_s=PATIENT_S, store_apart=True) as (agent, _):
        current.set_agent(agent)
        try:
            for job, each in (
                (jobs.call_all_together, 1),
                (jobs.call_all_waiting, 1),
                (jobs.be_called_back, 2),
            ):
                totals = [
                    agent.call_async(name, job, (name, names), timeout=WITHIN_S) for name in names
                ]
                assert wait_all(totals) == [each * WORKERS] * WORKERS
        finally:
            current.reset_agent()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units there")
def test_calls_that_nest_too_deeply_end_and_take_little_memory() -> None:
    """PE-3, at its full size: 512 calls each way, each with its error on the way back."""
    with workers(3, lease_s=PATIENT_S) as (agent, _):

        def memory() -> list[int]:
            return [agent.call(name, jobs.memory_mib) for name in ("w1", "w2")]

        begun, taken = memory(), []
        for _ in range(2):
            with pytest.raises(Overloaded) as refused:
                agent.call("w1", jobs.nested, ("w1", "w2", TOO_DEEP), timeout=WITHIN_S)
            assert len("".join([str(refused.value), *refused.value.__notes__])) < ERROR_MAX
            taken.append(memory())
        assert agent.call("w1", jobs.nested, ("w1", "w2", 100)) == 100
        for before, first, second in zip(begun, *taken, strict=True):
            assert first - before < NESTED_MIB
            assert second - first < AGAIN_MIB


# References. Each worker makes its part of them all over the world and passes each to two others,
# which keep it for a while.

_kept: dict[tuple[int, int, str], RRef[Any]] = {}
_done = threading.Semaphore(0)


def test_ten_thousand_references_are_made_forked_fetched_and_dropped() -> None:
    told = run_workers(_refer, REFERENCES // OWNERS, workers=OWNERS)
    assert sum(made for made, _, _ in told.values()) == REFERENCES
    for rank, (_, most, left) in told.items():
        assert most >= BATCH, f"worker{rank} owned {most} values at most"
        assert not any(left.values()), f"worker{rank} has left {left}"


def _refer(rank: int, count: int) -> tuple[int, int, dict[str, int]]:
    made = most = 0
    for first in range(0, count, BATCH):
        numbers = range(first, min(count, first + BATCH))
        rrefs = {n: remote(_worker(n), _value, (rank, n)) for n in numbers}
        made += len(rrefs)
        passed = [
            rpc_async(_worker(rank + n + 1), _keep_and_pass, (rref, _worker(n + 2), rank, n))
            for n, rref in rrefs.items()
        ]
        assert wait_all(passed) == [_value(rank, n) for n in numbers]
        assert all(rrefs[n].to_here() == _value(rank, n) for n in numbers[::3])
        most = max(most, current.current_agent().rrefs.counts()["owners"])
        del rrefs, passed
        for worker in range(OWNERS):
            rpc_sync(_worker(worker), _drop, (rank, numbers))
    for worker in range(OWNERS):
        rpc_sync(_worker(worker), _say_done)
    for _ in range(OWNERS):  # no more are made after that
        assert _done.acquire(timeout=WITHIN_S)
    gc.collect()
    table = current.current_agent().rrefs
    table.wait_empty(Deadline.after(WITHIN_S).remaining)
    return made, most, table.counts()


def _say_done() -> None:
    _done.release()


def _worker(number: int) -> str:
    return f"worker{number % OWNERS}"


def _value(rank: int, number: int) -> list[int]:
    return [rank, number]


def _keep_and_pass(rref: RRef[Any], to: str, rank: int, number: int) -> Any:
    _keep(rref, rank, number, "first")
    rpc_sync(to, _keep, (rref, rank, number, "second"))
    return rref.to_here()


def _keep(rref: RRef[Any], rank: int, number: int, how: str) -> None:
    _kept[rank, number, how] = rref


def _drop(rank: int, numbers: range) -> None:
    for number in numbers:
        _kept.pop((rank, number, "first"), None)
        _kept.pop((rank, number, "second"), None)
