"""Tests of signals as events."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from signal import Signals

import pytest

from holdfast.errors import UsageError
from holdfast.process.signals import HeldSignals, SignalEvents, hear_of_children


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Whatever started the tests: these are as in a fresh process."""
    mine = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT)
    earlier = {one: signal.signal(one, signal.SIG_DFL) for one in mine}
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


def test_what_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    events: queue.SimpleQueue[int] = queue.SimpleQueue()
    with SignalEvents((Signals.SIGHUP,), events.put):
        os.kill(os.getpid(), signal.SIGHUP)
        assert events.empty()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_what_a_shell_ignores_in_the_background_is_heard() -> None:
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    events: queue.SimpleQueue[int] = queue.SimpleQueue()
    with SignalEvents((Signals.SIGQUIT,), events.put):
        os.kill(os.getpid(), signal.SIGQUIT)
        assert events.get(timeout=30) == signal.SIGQUIT
    assert signal.getsignal(signal.SIGQUIT) == signal.SIG_IGN


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


@pytest.fixture
def children_ignored() -> Iterator[None]:
    earlier = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, earlier)


@pytest.mark.usefixtures("children_ignored")
def test_ends_of_children_are_kept_though_sigchld_was_ignored() -> None:
    hear_of_children()
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], {})
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


@pytest.mark.usefixtures("children_ignored")
def test_another_thread_is_told_that_ends_of_children_are_ignored() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError, match="SIGCHLD is ignored"):
        pool.submit(hear_of_children).result(30)


def test_a_handler_of_sigchld_stays() -> None:
    earlier = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        handler = signal.getsignal(signal.SIGCHLD)
        hear_of_children()
        assert signal.getsignal(signal.SIGCHLD) is handler
    finally:
        signal.signal(signal.SIGCHLD, earlier)


def test_held_signals_wait_and_then_have_their_effect() -> None:
    heard: list[int] = []
    earlier = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with HeldSignals((Signals.SIGUSR1,)) as held:
            signal.raise_signal(signal.SIGUSR1)
            assert heard == [signal.SIGUSR1]  # nothing is held yet
            held.hold()
            for _ in range(3):
                signal.raise_signal(signal.SIGUSR1)
            assert heard == [signal.SIGUSR1]
        assert heard == [signal.SIGUSR1] * 2  # what came several times is one signal, as ever
    finally:
        signal.signal(signal.SIGUSR1, earlier)


def test_an_interrupt_that_was_held_finds_everything_released() -> None:
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    held = HeldSignals((Signals.SIGUSR1, Signals.SIGINT))
    try:
        held.hold()
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            held.__exit__(None, None, None)
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, earlier)


def test_nothing_is_held_outside_the_main_thread() -> None:
    def hold() -> object:
        with HeldSignals((Signals.SIGUSR1,)) as held:
            held.hold()
            return signal.getsignal(signal.SIGUSR1)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(hold).result(10) == signal.SIG_DFL
