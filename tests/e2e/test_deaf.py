"""An agent hears signals and failures of workers soon, whatever blocks beside its loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LIMIT_S = 100  # far less than the limit of a forkserver
AGENT = """\
import os, sys
os.environ.setdefault("AGENT", str(os.getpid()))
import job
from holdfast import LaunchConfig
from holdfast.errors import Signalled, WorkersFailed
from holdfast.launch.launcher import run_job
from holdfast.process.spec import Function, StartMethod

if __name__ == "__main__":
    try:
        run_job(
            LaunchConfig(1, 1, 2, rdzv_endpoint="localhost:0", max_restarts=job.MAX_RESTARTS),
            Function(job.work, (), StartMethod.FORKSERVER),
            show=lambda status: print(status.state, flush=True),
        )
    except Signalled as error:
        sys.exit(error.signal)
    except WorkersFailed as error:
        for failure in error.failures:
            print(failure.rank, failure.exit.code, failure.message, flush=True)
        sys.exit(100)
"""
HANGS_AT_ITS_IMPORT = """\
import os, signal
MAX_RESTARTS = 1
if os.environ["AGENT"] != str(os.getpid()):
    os.write(1, b"hangs\\n")
    while True:
        signal.pause()

def work():
    pass
"""
STOPS_ITS_PARENT = """\
import os, signal
MAX_RESTARTS = 1

def work():
    if os.environ["RANK"] == "0":
        os.kill(os.getppid(), signal.SIGSTOP)
        os.write(1, b"stopped\\n")
    signal.pause()
"""
FAILS_WHILE_ITS_PARENT_IS_STOPPED = """\
import os, signal, sys
MAX_RESTARTS = 0

def work():
    with open(os.environ["MEET"], "w" if os.environ["RANK"] == "1" else "r"):
        pass  # both run
    if os.environ["RANK"] == "1":
        signal.pause()
    os.kill(os.getppid(), signal.SIGSTOP)
    sys.exit(7)
"""
FAILS_WHILE_THE_NEXT_IS_NOT_STARTED = """\
import os, signal
MAX_RESTARTS = 1

def work():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getppid(), signal.SIGSTOP)
        raise RuntimeError("a mistake")
    os.write(1, b"done\\n")
"""


@contextmanager
def agent(folder: Path, job: str) -> Iterator[subprocess.Popen[str]]:
    """Start an agent whose workers run this."""
    (folder / "job.py").write_text(job)
    (folder / "agent.py").write_text(AGENT)
    with subprocess.Popen(
        [sys.executable, str(folder / "agent.py")],
        env={**os.environ, "TMPDIR": str(folder), "MEET": str(folder / "meet")},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], said: str) -> None:
    assert process.stdout is not None
    while (line := process.stdout.readline().strip()) != said:
        assert line, f"the agent ended without {said!r}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_forkserver_that_hangs_in_an_import(tmp_path: Path, number: signal.Signals) -> None:
    with agent(tmp_path, HANGS_AT_ITS_IMPORT) as process:
        wait_for(process, "hangs")
        process.send_signal(number)
        assert process.wait(LIMIT_S) == number
    assert {path.name for path in tmp_path.iterdir()} <= {"agent.py", "job.py", "__pycache__"}


def test_a_forkserver_that_is_stopped(tmp_path: Path) -> None:
    with agent(tmp_path, STOPS_ITS_PARENT) as process:
        wait_for(process, "stopped")
        process.send_signal(signal.SIGTERM)
        wait_for(process, "stopping")
        process.send_signal(signal.SIGINT)  # which means: now
        assert process.wait(LIMIT_S) == signal.SIGINT
    assert {path.name for path in tmp_path.iterdir()} <= {"agent.py", "job.py", "__pycache__"}


def test_a_worker_that_fails_while_the_forkserver_is_stopped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meet")
    with agent(tmp_path, FAILS_WHILE_ITS_PARENT_IS_STOPPED) as process:
        wait_for(process, "0 7 exit code 7")  # with the true cause, and nothing of the other
        assert process.wait(LIMIT_S) == 100
    os.unlink(tmp_path / "meet")
    assert {path.name for path in tmp_path.iterdir()} <= {"agent.py", "job.py", "__pycache__"}


def test_a_worker_that_fails_while_a_stopped_forkserver_starts_no_other(tmp_path: Path) -> None:
    """The failure ends the attempt, and another forkserver starts the next one."""
    with agent(tmp_path, FAILS_WHILE_THE_NEXT_IS_NOT_STARTED) as process:
        wait_for(process, "done")
        assert process.wait(LIMIT_S) == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"agent.py", "job.py", "__pycache__"}
