"""A deadline that holds though the process that set it does not run."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.process.stop import fence as fence_module
from holdfast.process.stop.fence import Fence

TIMEOUT_S = 30.0
MARK = "HOLDFAST_GROUP=fence-of-a-test."
LONG_S = 3600.0


@pytest.fixture
def fence() -> Iterator[Fence]:
    made = Fence(MARK)
    yield made
    made.close()
    made.close()


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    with subprocess.Popen(command, start_new_session=True) as process:
        yield process
        process.kill()


def test_fe1_workers_are_killed_at_the_deadline(
    fence: Fence, worker: subprocess.Popen[bytes]
) -> None:
    fence.entered(worker.pid)
    fence.move(SYSTEM_CLOCK.monotonic() + LONG_S)
    fence.move(SYSTEM_CLOCK.monotonic())
    assert worker.wait(TIMEOUT_S) == -signal.SIGKILL


def test_fe2_a_worker_that_starts_too_late_is_killed(
    fence: Fence, worker: subprocess.Popen[bytes]
) -> None:
    fence.move(0.0)
    fence.entered(worker.pid)
    assert worker.wait(TIMEOUT_S) == -signal.SIGKILL


def test_without_a_deadline_there_is_no_process(fence: Fence) -> None:
    fence.entered(1)
    fence.left(1)
    assert fence._process is None


def test_fe3_closing_kills_nothing(worker: subprocess.Popen[bytes]) -> None:
    fence = Fence(MARK)
    fence.entered(worker.pid)
    fence.move(SYSTEM_CLOCK.monotonic() + LONG_S)
    process = fence._process
    assert process is not None
    fence.close()
    assert process.poll() is not None
    assert worker.poll() is None
    fence.move(0.0)  # as a renewal that comes after the end
    assert fence._process is None


def test_a_fork_lets_go_of_it(fence: Fence) -> None:
    fence.move(SYSTEM_CLOCK.monotonic() + LONG_S)
    pipe = fence._pipe
    assert pipe is not None
    fence.forget()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(pipe)


def test_a_fence_that_cannot_start_is_said_and_lived_without(
    fence: Fence, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    fence.move(0.0)
    fence.move(1.0)
    assert [one.levelno for one in caplog.records] == [logging.WARNING]
    assert "no fence" in caplog.text


def test_a_fence_that_died_is_said(
    fence: Fence, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    fence.move(SYSTEM_CLOCK.monotonic() + LONG_S)
    assert fence._process is not None
    fence._process.kill()
    fence._process.wait(TIMEOUT_S)
    fence.entered(1)
    assert "no fence" in caplog.text


def test_a_fence_that_hangs_at_its_end_is_killed(
    fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence_module, "_END_WITHIN_S", 0.05)
    fence.move(SYSTEM_CLOCK.monotonic() + LONG_S)
    process = fence._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    fence.close()
    assert process.poll() == -signal.SIGKILL
