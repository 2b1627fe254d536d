"""The clerk does scheduler one after the other, and ends."""

from __future__ import annotations

import threading

import pytest

from holdfast.agent.clerk import Clerk
from holdfast.errors import Unavailable

SOON_S = 20.0


def test_errands_are_done_in_order_and_all_of_them() -> None:
    done: list[int] = []
    clerk = Clerk("holdfast-clerk")
    for number in range(100):
        clerk.do(lambda number=number: done.append(number))  # type: ignore[misc]
    assert clerk.close(SOON_S)
    assert done == list(range(100))
    assert clerk.close(SOON_S)  # again


def test_a_clerk_without_errands_has_no_thread() -> None:
    before = threading.active_count()
    clerk = Clerk("holdfast-clerk")
    assert threading.active_count() == before
    assert clerk.close(0.0)


def test_who_closes_waits_no_longer_than_he_says() -> None:
    gate = threading.Event()
    clerk = Clerk("holdfast-clerk")

    def wait() -> None:
        gate.wait(SOON_S)

    clerk.do(wait)
    assert not clerk.close(0.0)
    gate.set()
    assert clerk.close(SOON_S)


def test_a_thread_that_cannot_be_started_is_no_bug_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    clerk = Clerk("holdfast-clerk")
    with pytest.raises(Unavailable, match="no thread can be started"):
        clerk.do(lambda: None)
    assert clerk.close(0.0)
