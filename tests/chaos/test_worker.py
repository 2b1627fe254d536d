"""The worker of chaos: it says where it is, and ends as it is told."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.chaos import worker as module
from tests.chaos.rig import carriers
from tests.chaos.worker import EXIT, FINISH, MARKS, RAISE, TOTAL, share

WITHIN_S = 20.0


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_the_parts_are_the_whole(world: int) -> None:
    assert sum(share(rank, world) for rank in range(world)) == TOTAL


@pytest.fixture
def marks(tmp_path: Path) -> Iterator[IO[bytes]]:
    os.mkfifo(tmp_path / MARKS)
    with open(os.open(tmp_path / MARKS, os.O_RDWR), "rb") as pipe:
        yield pipe


@contextlib.contextmanager
def worker(
    folder: Path, *options: str, local_rank: int = 1, token: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, module.__file__, str(folder), *options],
        stderr=subprocess.PIPE,
        env={
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": str(local_rank),
            "TORCHELASTIC_RESTART_COUNT": "5",
            "TOKEN": token,
        },
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def said(marks: IO[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(marks.readline())
    return found


def test_a_worker_that_ends_well(tmp_path: Path, marks: IO[bytes]) -> None:
    with worker(tmp_path) as process:
        who = {"rank": 3, "world": 4, "pid": process.pid, "restarts": 5, "alone": True}
        assert said(marks) == {"mark": "start", **who}
        assert said(marks) == {"mark": "work", **who}
        process.send_signal(FINISH)
        assert said(marks) == {"mark": "done", "value": share(3, 4), **who}
        assert process.wait(WITHIN_S) == 0


@pytest.mark.parametrize(
    ("number", "code"), [(EXIT, 3), (RAISE, 1), (signal.SIGINT, -2), (signal.SIGTERM, -15)]
)
def test_a_worker_that_does_not(
    tmp_path: Path, marks: IO[bytes], number: signal.Signals, code: int
) -> None:
    with worker(tmp_path) as process:
        assert [said(marks)["mark"], said(marks)["mark"]] == ["start", "work"]
        process.send_signal(number)
        assert process.wait(WITHIN_S) == code
        assert process.stderr is not None
        assert (b"Chaos: rank 3 was told to" in process.stderr.read()) == (number == RAISE)


def test_a_worker_that_does_not_heed_polite_signals(tmp_path: Path, marks: IO[bytes]) -> None:
    with worker(tmp_path, "stubborn") as process:
        assert [said(marks)["mark"], said(marks)["mark"]] == ["start", "work"]
        process.send_signal(signal.SIGTERM)
        process.send_signal(FINISH)
        assert said(marks)["mark"] == "done"


def test_a_worker_notices_an_earlier_one(tmp_path: Path, marks: IO[bytes]) -> None:
    with open(tmp_path / f"lock-{os.getpid()}-1", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with worker(tmp_path):
            assert said(marks)["alone"] is False


def test_one_worker_of_a_node_leaves_a_daemon_that_holds_the_lock(
    tmp_path: Path, marks: IO[bytes]
) -> None:
    token = f"daemon-{os.getpid()}-{tmp_path}"
    with worker(tmp_path, local_rank=0, token=token) as process:
        assert [said(marks)["mark"], said(marks)["mark"]] == ["start", "work"]
        process.kill()
        process.wait(WITHIN_S)
        [daemon] = carriers(f"TOKEN={token}")
        held = os.pidfd_open(daemon)
        try:
            with open(tmp_path / f"lock-{os.getpid()}-0") as lock:
                with pytest.raises(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                signal.pidfd_send_signal(held, signal.SIGKILL)
                fcntl.flock(lock, fcntl.LOCK_EX)  # free as soon as it is gone
        finally:
            os.close(held)
