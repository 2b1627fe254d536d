"""A worker that is killed is asked for its stacks; only one that catches the signal is."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.process.outcome.stacks import STACK_SIGNAL, writes_stacks
from holdfast.process.output.logs import RunLogs
from holdfast.process.output.streams import LogOptions
from holdfast.process.spec import Exit, GroupEnded, Script
from holdfast.process.stop import escalation
from holdfast.process.stop.containment import Containment
from tests.patience import with_more_time
from tests.unit.process.groups import STUBBORN, Bench

CATCHES = f"""
import faulthandler, sys
faulthandler.register({STACK_SIGNAL})
print("here", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("command", "writes"),
    [([sys.executable, "-c", CATCHES], True), (["sh", "-c", "echo here; cat"], False)],
    ids=["python", "another"],
)
def test_a_process_that_catches_the_signal_is_told_from_others(
    command: list[str], writes: bool
) -> None:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        assert writes_stacks(process.pid) is writes
        process.kill()
    assert not writes_stacks(process.pid)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    logs = RunLogs(LogOptions(), "run")
    logs.open()
    with Containment() as containment:
        bench = Bench(tmp_path, containment, logs)
        yield bench
        bench.close()
    logs.close()


HANGING = """\
import os, signal, time
def wait_for_godot():
    time.sleep(1000)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(os.environ["SAY"], "w") as say:
    say.write(f"{os.environ['RANK']} {os.getpid()}\\n")
wait_for_godot()
"""


def test_the_stacks_of_a_worker_that_is_killed_are_told(
    bench: Bench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """ES-6: of a Python worker; a program is killed, and nothing is said."""
    script = tmp_path / "hang.py"
    script.write_text(HANGING)
    monkeypatch.setattr(escalation, "ASK_BEFORE_S", math.inf)  # hence half of the grace

    def stop(grace_s: float) -> None:
        caplog.clear()
        group = bench.group(Script(str(script)), STUBBORN)
        pid = group.start()[0]
        bench.hear(2)
        group.stop(signal.SIGTERM, grace_s)
        exits = [bench.next_exit() for _ in range(2)]
        assert bench.next() == GroupEnded()
        assert {event.exit for event in exits} == {Exit(-signal.SIGKILL)}
        (told,) = caplog.messages
        assert told.startswith(f"the worker of rank 0 (process {pid}) did not end in time")
        assert "in wait_for_godot" in told
        assert "child.py" not in told

    with_more_time(stop)
