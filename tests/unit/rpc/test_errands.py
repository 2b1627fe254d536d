"""Errands are done in their turn, on a thread that comes with the first."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator

import pytest

from holdfast.rpc.errands import Errands

WITHIN_S = 20.0


@pytest.fixture
def errands() -> Iterator[Errands]:
    made = Errands("errands of a test")
    yield made
    made.close()


def test_errands_are_done_in_order_on_a_thread_of_their_own(errands: Errands) -> None:
    before = threading.active_count()
    done: list[int] = []
    last = threading.Event()
    for number in range(5):
        errands.do(lambda number=number: done.append(number))  # type: ignore[misc]
    errands.do(last.set)
    assert last.wait(WITHIN_S)
    assert done == [0, 1, 2, 3, 4]
    assert threading.active_count() == before + 1


def test_what_is_put_off_does_not_hold_up_what_is_not(errands: Errands) -> None:
    done: list[str] = []
    soon, late = threading.Event(), threading.Event()
    errands.do(lambda: done.append("never"), 1000.0)
    errands.do(soon.set)
    assert soon.wait(WITHIN_S)
    errands.do(late.set, 0.05)
    assert late.wait(WITHIN_S)
    assert done == []


def test_an_errand_may_give_another_one(errands: Errands) -> None:
    last = threading.Event()
    errands.do(lambda: errands.do(last.set))
    assert last.wait(WITHIN_S)


def test_an_errand_that_fails_is_logged_and_the_next_is_done(
    errands: Errands, caplog: pytest.LogCaptureFixture
) -> None:
    last = threading.Event()

    def fail() -> None:
        raise IndexError("planted")

    with caplog.at_level(logging.ERROR, "holdfast.rpc"):
        errands.do(fail)
        errands.do(last.set)
        assert last.wait(WITHIN_S)
    assert "an errand of an RPC agent failed" in caplog.text
    assert "IndexError" in caplog.text


def test_after_the_end_nothing_is_done(errands: Errands) -> None:
    errands.close()
    errands.do(lambda: pytest.fail("it was closed"))
    errands.close()


def test_it_can_be_ended_by_an_errand() -> None:
    errands = Errands("ends itself")
    last = threading.Event()

    def end() -> None:
        errands.close()
        last.set()

    errands.do(end)
    assert last.wait(WITHIN_S)
    errands.close()


def test_without_a_thread_to_be_had_they_wait_for_the_next_one(
    errands: Errands, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    last = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        errands.do(lambda: done.append(1))
    assert "can't start new thread" in caplog.text
    errands.do(last.set)
    assert last.wait(WITHIN_S)
    assert done == [1]


def test_what_is_done_is_not_kept_until_the_next_one(errands: Errands) -> None:
    class Errand:
        def __call__(self) -> None:
            pass

    gone = threading.Event()
    for delay_s in (0.0, 0.001):
        gone.clear()
        errand = Errand()
        weakref.finalize(errand, gone.set).atexit = False
        errands.do(errand, delay_s)
        del errand
        assert gone.wait(WITHIN_S)
