"""The process that kills workers at a deadline: what it decides, and that it does."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.process.stop.fence_main import Fencing, main

TIMEOUT_S = 30.0
SLEEP = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"


def test_nothing_is_due_without_a_deadline() -> None:
    fencing = Fencing()
    fencing.hear(b"+7\n")
    assert fencing.wait_s(1e9) is None
    assert fencing.due(1e9) == ()


def test_fe1_groups_are_due_at_the_deadline_that_was_told_last() -> None:
    fencing = Fencing()
    fencing.hear(b"+7\n+8\n=10.0\n")
    fencing.hear(b"=20.0\n-8\n")
    assert fencing.wait_s(12.0) == 8.0
    assert fencing.due(19.9) == ()
    assert fencing.due(20.0) == (7,)
    assert fencing.due(20.0) == ()  # once
    assert fencing.wait_s(20.0) is None


def test_fe2_a_group_that_comes_after_the_deadline_is_due_at_once() -> None:
    fencing = Fencing()
    fencing.hear(b"=10.0\n+7\n")
    assert fencing.wait_s(11.0) == 0.0
    assert fencing.due(11.0) == (7,)


def test_a_line_may_come_in_pieces_and_an_unknown_group_may_end() -> None:
    fencing = Fencing()
    fencing.hear(b"=1")
    assert fencing.kill_at == math.inf
    fencing.hear(b"0.5\n-3\n")
    assert fencing.kill_at == 10.5


@pytest.fixture
def fence() -> Iterator[int]:
    """The process's loop on a thread; what is given is where to write."""
    source, sink = os.pipe()
    thread = threading.Thread(target=main, args=(b"HOLDFAST_GROUP=fence-test.", source))
    thread.start()
    yield sink
    os.close(sink)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()  # FE-3: it ends with its input
    os.close(source)


def test_fe1_groups_and_marked_processes_are_killed(fence: int) -> None:
    marked = {**os.environ, "HOLDFAST_GROUP": "fence-test.1"}
    command = [sys.executable, "-c", SLEEP]
    worker = subprocess.Popen(command, start_new_session=True)
    daemon = subprocess.Popen(command, env=marked, start_new_session=True)
    other = subprocess.Popen(command, start_new_session=True)
    try:
        os.write(fence, f"+{worker.pid}\n={SYSTEM_CLOCK.monotonic()}\n".encode())
        assert worker.wait(TIMEOUT_S) == -9
        assert daemon.wait(TIMEOUT_S) == -9
        assert other.poll() is None
    finally:
        for process in (worker, daemon, other):
            process.kill()
            process.wait(TIMEOUT_S)


def test_a_group_that_is_gone_is_no_trouble(fence: int) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    gone.wait(TIMEOUT_S)
    worker = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    os.write(fence, f"+{gone.pid}\n+{worker.pid}\n=0.0\n".encode())
    assert worker.wait(TIMEOUT_S) == -9
