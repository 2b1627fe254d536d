"""The guard ends its command when the parent is gone, by whatever means, and tells its status."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from holdfast.store.etcd import guard as etcd_guard

TIMEOUT_S = 30.0
# Says its number, and then sleeps until it is killed.
SLEEPER = "import os, signal; print(os.getpid(), flush=True); signal.pause()"


def guarded(*command: str, parent: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", etcd_guard.__file__, str(parent or os.getpid()), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def await_end(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], TIMEOUT_S)[0], f"process {pid} lives on"
    finally:
        os.close(descriptor)


def start_sleeper(parent: int | None = None) -> tuple[subprocess.Popen[bytes], int]:
    guard = guarded(sys.executable, "-c", SLEEPER, parent=parent)
    assert guard.stdout is not None
    return guard, int(guard.stdout.readline())


def finish(guard: subprocess.Popen[bytes]) -> int:
    for pipe in (guard.stdin, guard.stdout):
        if pipe is not None:
            pipe.close()
    return guard.wait(TIMEOUT_S)


@pytest.mark.parametrize("status", [0, 7])
def test_the_status_of_the_command_is_told(status: int) -> None:
    guard = guarded(sys.executable, "-c", f"raise SystemExit({status})")
    assert guard.wait(TIMEOUT_S) == status
    finish(guard)


def test_a_signal_that_ended_the_command_is_told() -> None:
    guard, pid = start_sleeper()
    os.kill(pid, signal.SIGTERM)
    assert guard.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    finish(guard)


def test_a_command_that_does_not_exist_is_told() -> None:
    guard = guarded("/no/such/command")
    assert guard.wait(TIMEOUT_S) == 127
    finish(guard)


def test_closing_the_pipe_kills_the_command() -> None:
    guard, pid = start_sleeper()
    assert finish(guard) == 128 + signal.SIGKILL
    await_end(pid)


def test_what_is_written_into_the_pipe_means_nothing() -> None:
    guard, pid = start_sleeper()
    assert guard.stdin is not None
    guard.stdin.write(b"x" * 10_000)
    guard.stdin.flush()
    os.kill(pid, 0)
    finish(guard)
    await_end(pid)


def test_the_command_dies_with_its_guard() -> None:
    guard, pid = start_sleeper()
    guard.kill()
    finish(guard)
    await_end(pid)


def test_another_parent_is_noticed_although_the_pipe_is_open() -> None:
    """As when the parent died and a process that it forked holds a copy of the pipe."""
    guard = guarded(sys.executable, "-c", SLEEPER, parent=1 if os.getpid() != 1 else 2)
    assert guard.wait(TIMEOUT_S) == 128 + signal.SIGKILL
    finish(guard)
