"""A worker that is killed is asked for its stacks; only one that catches the signal is."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.process.outcome.errorfile import is_whole_stack, read_stack
from holdfast.process.outcome.stacks import (
    STACK_SIGNAL,
    WorkerStack,
    kernel_state,
    take_stacks,
    writes_stacks,
)
from holdfast.process.output.logs import RunLogs
from holdfast.process.output.streams import LogOptions
from holdfast.process.spec import Exit, GroupEnded, Launch, Script
from holdfast.process.stop import escalation
from holdfast.process.stop.containment import Containment
from tests.unit.process.groups import STUBBORN, Bench
from tests.waiting import until, with_more_time

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


# On demand.

ASKED = """
import faulthandler, sys
file = open(sys.argv[1], "wb", buffering=0)
faulthandler.register(int(sys.argv[2]), file)
def wait_for_godot():
    print("here", flush=True)
    sys.stdin.read()
wait_for_godot()
"""


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[Launch, subprocess.Popen[bytes]]]:
    """A worker of rank 3 that waits and writes its stacks when asked."""
    launch = Launch(
        entrypoint=Script("x.py"),
        local_rank=0,
        rank=3,
        role="",
        environment={},
        folder=tmp_path,
    )
    with subprocess.Popen(
        [sys.executable, "-c", ASKED, str(launch.stack_file), str(STACK_SIGNAL)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        yield launch, process
        process.kill()


def ask(process: subprocess.Popen[bytes]) -> Callable[[int], bool]:
    def send(pid: int) -> bool:
        process.send_signal(STACK_SIGNAL)
        return pid == process.pid

    return send


def test_stacks_are_taken_on_demand_and_leave_nothing_behind(
    asked: tuple[Launch, subprocess.Popen[bytes]],
) -> None:
    launch, process = asked
    for _ in range(3):
        (found,) = take_stacks([(launch, process.pid)], ask(process), within_s=60.0)
        assert (found.rank, found.pid, found.why) == (3, process.pid, "")
        assert found.text.count("in wait_for_godot") == 1
        assert read_stack(launch.stack_file) == ""
    process.send_signal(STACK_SIGNAL)  # as before it is killed: behind the hole
    until(lambda: "in wait_for_godot" in read_stack(launch.stack_file))
    assert read_stack(launch.stack_file).startswith("Current thread")
    assert not is_whole_stack(launch.stack_file)  # it began in no file of ours


def test_a_process_that_is_stopped_or_does_not_answer_is_told(
    asked: tuple[Launch, subprocess.Popen[bytes]],
) -> None:
    launch, process = asked
    workers = [(launch, process.pid)]
    (silent,) = take_stacks(workers, lambda pid: True, within_s=0.01)
    assert silent.why == "it did not answer within 0.01 s"
    (other,) = take_stacks(workers, lambda pid: False)
    assert other.why == "it is no Python that writes its stacks"
    process.send_signal(signal.SIGSTOP)
    until(lambda: kernel_state(process.pid)[0] == "stopped by a signal")
    (stopped,) = take_stacks(workers, lambda pid: pytest.fail("was asked"))
    assert (stopped.state, stopped.text) == ("stopped by a signal", "")
    assert stopped.why == "the process does not run"


def test_the_state_of_a_process_that_is_gone() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        until(lambda: kernel_state(process.pid)[0] == "sleeping")
        process.kill()
    assert kernel_state(process.pid) == ("ended", "")


def test_stacks_come_in_the_order_of_ranks(tmp_path: Path) -> None:
    def launch(rank: int) -> Launch:
        return Launch(
            entrypoint=Script("x.py"),
            local_rank=0,
            rank=rank,
            role="",
            environment={},
            folder=tmp_path,
        )

    found = take_stacks([(launch(2), 1), (launch(1), 1)], lambda pid: False)
    assert [one.rank for one in found] == [1, 2]
    assert isinstance(found[0], WorkerStack)
