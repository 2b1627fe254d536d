"""An agent answers signals at once, whatever blocks beside its loop."""

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
from holdfast.errors import Signalled
from holdfast.launch.launcher import run_job
from holdfast.process.spec import Function, StartMethod

if __name__ == "__main__":
    try:
        run_job(
            LaunchConfig(1, 1, 2, rdzv_endpoint="localhost:0", max_restarts=1),
            Function(job.work, (), StartMethod.FORKSERVER),
            show=lambda status: print(status.state, flush=True),
        )
    except Signalled as error:
        sys.exit(error.signal)
"""
HANGS_AT_ITS_IMPORT = """\
import os, signal
if os.environ["AGENT"] != str(os.getpid()):
    os.write(1, b"hangs\\n")
    while True:
        signal.pause()

def work():
    pass
"""
STOPS_ITS_PARENT = """\
import os, signal

def work():
    if os.environ["RANK"] == "0":
        os.kill(os.getppid(), signal.SIGSTOP)
        os.write(1, b"stopped\\n")
    signal.pause()
"""


@contextmanager
def agent(folder: Path, job: str) -> Iterator[subprocess.Popen[str]]:
    """Start an agent whose workers run this."""
    (folder / "job.py").write_text(job)
    (folder / "agent.py").write_text(AGENT)
    with subprocess.Popen(
        [sys.executable, str(folder / "agent.py")],
        env={**os.environ, "TMPDIR": str(folder)},
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
