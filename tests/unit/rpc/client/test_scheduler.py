"""Scheduler are done in their turn, on a thread that comes with the first."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator

import pytest

from holdfast.rpc.client.scheduler import Scheduler

WITHIN_S = 20.0


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler("scheduler of a test")
    yield made
    made.close()


def test_tasks_run_in_order_on_a_thread_of_their_own(scheduler: Scheduler) -> None:
    before = threading.active_count()
    done: list[int] = []
    last = threading.Event()
    for number in range(5):
        scheduler.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    scheduler.submit(last.set)
    assert last.wait(WITHIN_S)
    assert done == [0, 1, 2, 3, 4]
    assert threading.active_count() == before + 1


def test_a_delayed_task_does_not_delay_others(scheduler: Scheduler) -> None:
    done: list[str] = []
    soon, late = threading.Event(), threading.Event()
    scheduler.submit(lambda: done.append("never"), 1000.0)
    scheduler.submit(soon.set)
    assert soon.wait(WITHIN_S)
    scheduler.submit(late.set, 0.05)
    assert late.wait(WITHIN_S)
    assert done == []


def test_a_task_may_submit_another_one(scheduler: Scheduler) -> None:
    last = threading.Event()
    scheduler.submit(lambda: scheduler.submit(last.set))
    assert last.wait(WITHIN_S)


def test_a_task_that_fails_is_logged_and_the_next_runs(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    last = threading.Event()

    def fail() -> None:
        raise IndexError("planted")

    with caplog.at_level(logging.ERROR, "holdfast.rpc"):
        scheduler.submit(fail)
        scheduler.submit(last.set)
        assert last.wait(WITHIN_S)
    assert "a task of an RPC agent failed" in caplog.text
    assert "IndexError" in caplog.text


def test_after_the_end_nothing_is_done(scheduler: Scheduler) -> None:
    scheduler.close()
    scheduler.submit(lambda: pytest.fail("it was closed"))
    scheduler.close()


def test_a_task_may_end_the_scheduler() -> None:
    scheduler = Scheduler("ends itself")
    last = threading.Event()

    def end() -> None:
        scheduler.close()
        last.set()

    scheduler.submit(end)
    assert last.wait(WITHIN_S)
    scheduler.close()


def test_without_a_thread_to_be_had_they_wait_for_the_next_one(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    last = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        scheduler.submit(lambda: done.append(1))
    assert "can't start new thread" in caplog.text
    scheduler.submit(last.set)
    assert last.wait(WITHIN_S)
    assert done == [1]


def test_a_task_that_ran_is_not_kept_until_the_next_one(scheduler: Scheduler) -> None:
    class Task:
        def __call__(self) -> None:
            pass

    gone = threading.Event()
    for delay_s in (0.0, 0.001):
        gone.clear()
        task = Task()
        weakref.finalize(task, gone.set).atexit = False
        scheduler.submit(task, delay_s)
        del task
        assert gone.wait(WITHIN_S)
