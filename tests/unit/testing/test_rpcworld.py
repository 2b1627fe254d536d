"""Functions and tests in several workers."""

from __future__ import annotations

import multiprocessing
import operator
import os
import signal
import sys
import threading
import warnings
from pathlib import Path

import pytest

from holdfast.errors import CallTimedOut, PeerLost, UsageError, WorkersFailed
from holdfast.faults.plan import parse_plan
from holdfast.faults.transport import FaultyTransport
from holdfast.rpc.api import get_worker_info, init_rpc, rpc_async, rpc_sync, shutdown
from holdfast.rpc.current import current_agent, is_agent_set
from holdfast.testing.rpcworld import RpcWorld, rpc_workers, run_workers

SOON = 30.0


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
    assert type(current_agent().transport).__name__ == "NoneType"


def test_a_decorated_test_runs_in_workers_with_its_faults() -> None:
    decorated()
    plain()


@rpc_workers
def without_brackets(rank: int) -> None:
    assert rpc_sync((rank + 1) % 4, operator.add, (1, rank)) == 1 + rank


def test_a_decorator_without_brackets_means_four_workers() -> None:
    without_brackets()


@pytest.mark.parametrize("base", [10, 20])
@rpc_workers(2)
def test_a_decorated_test_takes_what_pytest_gives(rank: int, tmp_path: Path, base: int) -> None:
    assert base in (10, 20)
    assert tmp_path.is_dir()
    assert rpc_sync(1 - rank, operator.add, (base, rank)) == base + rank


class TestDecoratedMethods:
    base = 10

    @pytest.mark.parametrize("more", [1])
    @rpc_workers(2)
    def test_it_takes_itself_and_the_rank(self, rank: int, tmp_path: Path, more: int) -> None:
        assert tmp_path.is_dir()
        assert rpc_sync(1 - rank, operator.add, (self.base, rank + more)) == self.base + rank + 1

    @staticmethod
    @rpc_workers(2)
    def test_one_without_itself(rank: int) -> None:
        assert rpc_sync(1 - rank, operator.add, (1, rank)) == 1 + rank

    @classmethod
    def of_the_class(cls, rank: int) -> tuple[int, int]:
        return cls.base, rank

    def test_methods_run_in_workers(self) -> None:
        assert run_workers(self.of_the_class, workers=2) == {0: (self.base, 0), 1: (self.base, 1)}
        assert run_workers(self.plain, 5, workers=1) == {0: (self.base, 0, 5)}

    def plain(self, rank: int, more: int) -> tuple[int, int, int]:
        return self.base, rank, more


class TestInheritedMethods(TestDecoratedMethods):
    base = 20


def test_a_decorated_test_takes_its_rank() -> None:
    for wrong in (lambda: None, lambda self: None):
        with pytest.raises(UsageError, match="<lambda>: must take its rank"):
            rpc_workers(2)(wrong)


@rpc_workers(2, setup_rpc=False)
def alone(rank: int) -> None:
    assert not is_agent_set()
    init_rpc(f"other{rank}")
    assert rpc_sync(f"other{1 - rank}", operator.add, (1, 2)) == 3
    shutdown()


def test_a_decorated_test_may_set_up_rpc_itself() -> None:
    alone()


@rpc_workers(2, clean_shutdown=False)
def one_waits_for_the_other(rank: int) -> None:
    if rank:  # a shutdown that waits would wait for this, and this for that
        with pytest.raises(PeerLost):
            rpc_sync("worker0", wait_for_ever, timeout=SOON)


def wait_for_ever() -> None:
    threading.Event().wait(SOON)


def test_workers_need_not_wait_for_each_other() -> None:
    one_waits_for_the_other()


def test_a_fault_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="'drops' is unknown"):
        rpc_workers(2, drops=3)
    with pytest.raises(UsageError, match="'CALL' is not a kind of message"):
        RpcWorld(2, messages_to_fail=["CALL"])


# A test that is a worker itself.


def lives() -> tuple[str, int]:
    return get_worker_info().name, os.getpid()


def ask(name: str) -> tuple[str, int]:
    return rpc_sync(name, lives)


def transport() -> str:
    return type(current_agent().transport).__name__


def test_a_test_calls_workers_and_they_call_each_other() -> None:
    with RpcWorld(3):
        pids = {rpc_sync(f"worker{rank}", lives)[1] for rank in range(3)}
        assert len(pids) == 3
        assert os.getpid() in pids
        assert rpc_sync("worker1", ask, ("worker2",))[0] == "worker2"
        assert rpc_sync("worker1", ask, ("worker0",)) == ("worker0", os.getpid())
    assert not is_agent_set()


def fork() -> int | None:
    """Start a forked child and wait for its end; it closes the input that it has inherited."""
    child = multiprocessing.get_context("fork").Process(target=int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are other threads
        child.start()
    child.join(SOON)
    code = child.exitcode
    child.kill()
    child.join()
    return code


def test_a_worker_may_fork() -> None:
    with RpcWorld(2):
        assert rpc_sync("worker1", fork) == 0


def test_a_worker_is_killed_and_comes_again() -> None:
    with RpcWorld(2) as world:
        _, before = rpc_sync("worker1", lives)
        waiting = rpc_async("worker1", wait_for_ever)
        with pytest.raises(UsageError, match="worker1: it runs"):
            world.start("worker1")
        world.kill("worker1")
        assert isinstance(waiting.exception(SOON), PeerLost)
        world.start("worker1")
        _, after = rpc_sync("worker1", lives)
        assert after != before


def test_a_worker_is_stopped_and_goes_on() -> None:
    with RpcWorld(2) as world:
        world.send_signal("worker1", signal.SIGSTOP)
        with pytest.raises(CallTimedOut):
            rpc_sync("worker1", lives, timeout=0.2)
        world.send_signal("worker1", signal.SIGCONT)
        assert rpc_sync("worker1", lives)[0] == "worker1"
        world.send_signal("worker1", signal.SIGSTOP)  # it ends all the same


def test_every_worker_has_the_faults() -> None:
    plan = parse_plan("seed 3\ndelay PYTHON_CALL seconds=0.01")
    with RpcWorld(2, plan=plan, rpc_timeout=SOON):
        assert transport() == "FaultyTransport"
        assert rpc_sync("worker1", transport) == "FaultyTransport"
    with RpcWorld(1):
        assert transport() == "NoneType"


def rules_here() -> str:
    carrier = current_agent().transport
    return str(carrier.plan) if isinstance(carrier, FaultyTransport) else ""


def test_a_plan_that_is_given_as_it_is_has_the_record() -> None:
    plan = parse_plan("seed 3\nfail PYTHON_CALL to=worker1 nth=2")
    with RpcWorld(2, plan=plan):
        assert rpc_sync("worker1", rules_here) == str(plan)  # one like it
        assert plan.short_of()
        with pytest.raises(PeerLost, match="intentionally"):
            rpc_sync("worker1", lives)
    assert [(fault.action, fault.to) for fault in plan.record] == [("fail", "worker1")]
    assert not plan.short_of()


def test_a_test_may_end_its_own_part() -> None:
    with RpcWorld(2):
        shutdown(graceful=False)


def test_an_unknown_worker_can_be_neither_killed_nor_started() -> None:
    with RpcWorld(2) as world:
        for act in (world.kill, world.start):
            with pytest.raises(UsageError, match="'worker7': no worker .* there are worker1"):
                act("worker7")
    with pytest.raises(UsageError, match="at least 1"):
        RpcWorld(0)


def test_a_worker_that_does_not_come_is_an_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/true")
        with pytest.raises(RuntimeError, match="worker1 did not come"), RpcWorld(3):
            pass
    assert not is_agent_set()
    with RpcWorld(1):
        pass
