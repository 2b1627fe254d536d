"""A task thread runs tasks one after the other, and ends."""

from __future__ import annotations

import threading

import pytest

from holdfast.agent.task_thread import TaskThread
from holdfast.errors import Unavailable

SOON_S = 20.0


def test_all_tasks_are_run_in_order() -> None:
    done: list[int] = []
    thread = TaskThread("holdfast-tasks")
    for number in range(100):
        thread.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert thread.close(SOON_S)
    assert done == list(range(100))
    assert thread.close(SOON_S)  # again


def test_no_thread_is_started_before_the_first_task() -> None:
    before = threading.active_count()
    thread = TaskThread("holdfast-tasks")
    assert threading.active_count() == before
    assert thread.close(0.0)


def test_close_waits_no_longer_than_its_timeout() -> None:
    gate = threading.Event()
    thread = TaskThread("holdfast-tasks")

    def wait() -> None:
        gate.wait(SOON_S)

    thread.submit(wait)
    assert not thread.close(0.0)
    gate.set()
    assert thread.close(SOON_S)


def test_a_thread_that_cannot_be_started_raises_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    thread = TaskThread("holdfast-tasks")
    with pytest.raises(Unavailable, match="no thread can be started"):
        thread.submit(lambda: None)
    assert thread.close(0.0)
