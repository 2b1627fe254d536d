"""Functions and tests in several workers."""

from __future__ import annotations

import operator

import pytest

from holdfast.errors import WorkersFailed
from holdfast.rpc.api import get_worker_info, rpc_sync
from holdfast.rpc.current import current_agent
from holdfast.testing.rpcworld import rpc_workers, run_workers


def who(rank: int, base: int) -> tuple[str, int]:
    other = f"worker{1 - rank}"
    return get_worker_info().name, rpc_sync(other, operator.add, (base, rank))


def fail_at_one(rank: int) -> None:
    if rank:
        raise ValueError("worker 1 does not like it")


def timeout_of(rank: int) -> float:
    return current_agent().timeout_s


def test_a_function_runs_in_every_worker() -> None:
    assert run_workers(who, 10, workers=2) == {0: ("worker0", 10), 1: ("worker1", 11)}


def test_what_a_worker_raises_is_raised_here() -> None:
    with pytest.raises(WorkersFailed, match="worker 1 does not like it"):
        run_workers(fail_at_one, workers=2)


def test_the_default_timeout_is_set() -> None:
    assert run_workers(timeout_of, workers=1, rpc_timeout=7.0) == {0: 7.0}


@rpc_workers(2, plan="delay PYTHON_CALL seconds=0.01")
def decorated(rank: int) -> None:
    assert type(current_agent().transport).__name__ == "FaultyTransport"
    assert rpc_sync(1 - rank, operator.add, (1, rank)) == 1 + rank


@rpc_workers(1)
def plain(rank: int) -> None:
    assert type(current_agent().transport).__name__ == "Direct"


def test_a_decorated_test_runs_in_workers_with_its_faults() -> None:
    decorated()
    plain()


def test_a_fault_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="'drops' is unknown"):
        rpc_workers(2, drops=3)
