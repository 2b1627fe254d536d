"""Which process holds the lock of a file."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.store.lockholder import holder_of
from tests.unit.store.tcp_parts import line_of

HOLD = """
import fcntl, signal, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
signal.pause()
"""


def test_the_process_is_named_and_that_it_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with (
        path.open() as file,
        subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
        ) as holder,
    ):
        try:
            assert line_of(holder) == "held"
            assert holder_of(file.fileno()).startswith(f"process {holder.pid} (python")
            holder.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
            assert holder_of(file.fileno()).endswith(", stopped)")
        finally:
            holder.kill()


@pytest.mark.parametrize("text", ["", "1: FLOCK\n", "1: FLOCK ADVISORY WRITE -1 08:01:{} 0 EOF\n"])
def test_one_that_is_not_told_is_another(tmp_path: Path, text: str) -> None:
    locks = tmp_path / "locks"
    with locks.open("w+") as file:
        locks.write_text(text.format(os.fstat(file.fileno()).st_ino))
        fcntl.flock(file, fcntl.LOCK_EX)
        assert holder_of(file.fileno(), locks) == "another process"
    with locks.open() as file:
        assert holder_of(file.fileno(), tmp_path / "none") == "another process"
