"""Tests of signals as events."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Iterator
from signal import Signals

import pytest

from holdfast.process.signals import SignalEvents


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Whatever started the tests: SIGUSR1 and SIGUSR2 are as in a fresh process."""
    earlier = {one: signal.signal(one, signal.SIG_DFL) for one in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for one, handler in earlier.items():
        signal.signal(one, handler)


def test_signals_become_events_until_the_end() -> None:
    events: queue.SimpleQueue[int] = queue.SimpleQueue()
    before: list[int] = []
    earlier = signal.signal(signal.SIGUSR2, lambda number, _: before.append(number))
    try:
        with SignalEvents((Signals.SIGUSR1, Signals.SIGUSR2), events.put):
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR2)
            assert events.get(timeout=10) == signal.SIGUSR1
            assert events.get(timeout=10) == signal.SIGUSR2
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGUSR2)
        assert before == [signal.SIGUSR2]
        assert events.empty()
    finally:
        signal.signal(signal.SIGUSR2, earlier)


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    events: queue.SimpleQueue[int] = queue.SimpleQueue()
    with SignalEvents((Signals.SIGUSR1,), events.put):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert events.empty()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN


def test_another_thread_handles_none_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    handlers: list[object] = []

    def enter() -> None:
        with SignalEvents((Signals.SIGUSR1,), lambda _: None):
            handlers.append(signal.getsignal(signal.SIGUSR1))

    with caplog.at_level(logging.DEBUG, "holdfast.process"):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(10)
    assert handlers == [signal.SIG_DFL]
    assert "not the main thread" in caplog.text
