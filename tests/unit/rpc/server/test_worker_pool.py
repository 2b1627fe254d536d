"""Threads that run one job after another."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator

import pytest

from holdfast.rpc.server.worker_pool import WorkerPool
from tests.unit.rpc.server_world import SOON
from tests.waiting import until


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool("test", threads_max=3)
    yield made
    made.close()
    until(lambda: len(made) == 0)


def busy(pool: WorkerPool) -> int:
    return len(pool) - len(pool._idle)


def test_wp1_jobs_that_wait_for_each_other_finish(pool: WorkerPool) -> None:
    together = threading.Barrier(4)
    assert [pool.run(lambda: together.wait(SOON)) for _ in range(3)] == [True] * 3
    together.wait(SOON)


def test_wp2_a_pipe_is_taken_over_up_to_the_bound_and_connections_are_read_beyond_it(
    pool: WorkerPool,
) -> None:
    gate = threading.Event()
    assert [pool.run(lambda: gate.wait(SOON)) for _ in range(4)] == [True] * 3 + [False]
    assert [pool.run(lambda: gate.wait(SOON), reads=True) for _ in range(4)] == [True] * 4
    assert not pool.run(lambda: gate.wait(SOON))
    gate.set()
    until(lambda: busy(pool) == 0)
    assert pool.run(gate.clear)
    until(lambda: not gate.is_set())


def test_an_idle_thread_is_used_again(pool: WorkerPool) -> None:
    threads: set[int] = set()
    for _ in range(50):
        assert pool.run(lambda: threads.add(threading.get_ident()))
        until(lambda: busy(pool) == 0)
    assert len(threads) == 1


def test_wp3_an_idle_thread_keeps_nothing_and_ends() -> None:
    class Block:
        pass

    pool = WorkerPool("test", idle_s=0.05)
    block = Block()
    gone = weakref.ref(block)
    held = [block]
    assert pool.run(held.clear)
    del block
    until(lambda: gone() is None)
    until(lambda: len(pool) == 0)
    ran = threading.Event()
    assert pool.run(ran.set)
    assert ran.wait(SOON)
    pool.close()


def test_wp1_a_job_that_is_submitted_while_a_thread_ends_still_runs() -> None:
    pool = WorkerPool("test", idle_s=0.0)
    for _ in range(500):
        ran = threading.Event()
        assert pool.run(ran.set)
        assert ran.wait(SOON)
    pool.close()
    until(lambda: len(pool) == 0)


def test_an_error_in_a_job_is_logged_and_ends_no_thread(
    pool: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()
    with caplog.at_level(logging.ERROR):
        assert pool.run(lambda: 1 // 0)
        until(lambda: busy(pool) == 0)
        assert pool.run(ran.set)
        assert ran.wait(SOON)
    assert "ZeroDivisionError" in caplog.text


def test_a_pool_that_is_closed_runs_nothing(pool: WorkerPool) -> None:
    gate, left = threading.Event(), threading.Event()

    def job() -> None:
        gate.wait(SOON)
        left.set()

    assert pool.run(job)
    pool.close()
    pool.close()
    assert not pool.run(left.set)
    assert not left.is_set()
    gate.set()
    until(lambda: len(pool) == 0)


def test_without_a_thread_to_be_had_the_job_does_not_run(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: object, **kwargs: object) -> threading.Thread:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", none)
        assert not pool.run(lambda: None)
    assert len(pool) == 0
    assert pool.run(lambda: None)
