"""A thread starts, or the system is said to have no room for it."""

from __future__ import annotations

import threading

import pytest

from holdfast.errors import Unavailable
from holdfast.threads import start_thread


def test_a_thread_starts() -> None:
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    start_thread(thread)
    thread.join(30)
    assert ran.is_set()


def test_a_thread_that_cannot_be_started_is_no_bug_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(Unavailable, match="no thread can be started: can't start new thread"):
        start_thread(threading.Thread(target=full))
