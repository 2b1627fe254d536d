"""A worker that hangs and is killed leaves its stacks: where the report is, and in its file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import with_more_time

LIMIT_S = 200
SCRIPT = """\
import os, signal, sys, time, holdfast
def wait_for_godot():
    time.sleep(1000)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"here\\n")
if sys.argv[1:] == ["timer"]:
    with holdfast.expires(0.2):
        wait_for_godot()
wait_for_godot()
"""
# The worker has half a second to write them, which a busy machine may not give it.
KEPT = [(), ("--redirects=2",), ("--tee=2",)]


def hang(folder: Path, *argv: str, stop: bool) -> str:
    """Run a job whose worker hangs, with its logs in the folder; return what the agent says."""
    script = folder.parent / "hang.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "holdfast", "run", *argv[:-1], str(script), argv[-1]]
    environment = {**os.environ, "TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            if stop:
                process.send_signal(signal.SIGTERM)
            return process.communicate(timeout=LIMIT_S)[1]
        finally:
            process.kill()


@pytest.mark.parametrize("flags", KEPT, ids=["neither", "redirects", "tee"])
@pytest.mark.parametrize("stop", [False, True], ids=["timer", "shutdown"])
def test_stacks_are_in_the_log_folder(tmp_path: Path, flags: tuple[str, ...], stop: bool) -> None:
    def attempt(_: float) -> None:
        logs = tmp_path / os.urandom(4).hex()
        logs.mkdir()
        said = hang(
            logs,
            *(f"--log-dir={logs}", "--shutdown-timeout=1", *flags),
            "" if stop else "timer",
            stop=stop,
        )
        (stack,) = logs.glob("*/attempt_0/0/stack.txt")
        assert "in wait_for_godot" in stack.read_text()
        assert "in wait_for_godot" in said

    with_more_time(attempt)


@pytest.mark.parametrize("stop", [False, True], ids=["timer", "shutdown"])
def test_where_no_file_is_kept_the_agent_shows_the_stacks(tmp_path: Path, stop: bool) -> None:
    def attempt(_: float) -> None:
        folder = tmp_path / os.urandom(4).hex()
        folder.mkdir()
        said = hang(folder, "--shutdown-timeout=1", "" if stop else "timer", stop=stop)
        assert "in wait_for_godot" in said
        assert list(folder.iterdir()) == []

    with_more_time(attempt)
