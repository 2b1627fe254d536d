"""The stage on which an agent of chaos plays: it reports, and stops in one phase, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.agent.machine import State
from holdfast.agent.status import AgentStatus
from holdfast.ids import CauseId
from holdfast.observe.events import Event, RunEnded, WorkersFinished
from tests.chaos.agent import Stage
from tests.chaos.plan import Phase

FINISHED = WorkersFinished(cause=CauseId("c"), at=1.0, run="r", round=2, ranks=(0, 1))
OVER = RunEnded(cause=CauseId("c"), at=1.0, run="r", reason="so")


class Pipes:
    """What a stage reports goes to one pipe; the other lets it go on."""

    def __init__(self) -> None:
        self.heard, self.reports = os.pipe()
        self.releases, self.release = os.pipe()

    def said(self) -> list[dict[str, object]]:
        """Return what has been reported since."""
        os.write(self.reports, b"")
        return [json.loads(line) for line in os.read(self.heard, 65536).splitlines()]


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    pipes = Pipes()
    yield pipes
    for fd in vars(pipes).values():
        os.close(fd)


def stage(pipes: Pipes, phase: Phase | None) -> Stage:
    return Stage(phase, pipes.reports, pipes.releases)


SPINNING = """
import os, signal, threading
from tests.chaos.agent import show_stacks_at

def deep(depth):
    return depth and deep(depth - 1)

def spin():
    while True:
        for depth in range(0, 400, 7):  # frames are freed when the stack shrinks
            deep(depth)

show_stacks_at(signal.SIGUSR1)
threading.Thread(target=spin, daemon=True).start()
print(flush=True)
os.read(0, 1)
"""


def test_stacks_are_shown_while_other_threads_run() -> None:
    command = [sys.executable, "-c", SPINNING]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        for _ in range(100):
            process.send_signal(signal.SIGUSR1)
            # The outermost frame of the main thread comes last.
            assert any(b"in <module>" in line for line in process.stderr), process.wait(20)
        process.communicate(b".", timeout=20)
    assert process.returncode == 0


def test_it_stops_where_it_should_and_only_once(pipes: Pipes) -> None:
    os.write(pipes.release, b"..")
    one = stage(pipes, Phase.FINISHED)
    one.emit(OVER)
    one.emit(FINISHED)
    one.emit(FINISHED)
    said = pipes.said()
    assert [each["event"] for each in said] == [
        *("RunEnded", "WorkersFinished", "phase", "WorkersFinished")
    ]
    assert said[2]["phase"] == "workers finished"
    assert os.read(pipes.releases, 9) == b"."  # one of the two was taken


@pytest.mark.parametrize("event", [FINISHED, OVER])
def test_it_stops_nowhere_else(pipes: Pipes, event: Event) -> None:
    one = stage(pipes, Phase.RUNNING)
    one.emit(event)
    one.reach(Phase.LEAVING)
    assert len(pipes.said()) == 1


@pytest.mark.parametrize(
    ("state", "phase"), [(State.JOINING, Phase.WAITING), (State.STOPPING, Phase.STOPPING)]
)
def test_it_stops_in_a_state(pipes: Pipes, state: State, phase: Phase) -> None:
    os.write(pipes.release, b".")
    one = stage(pipes, phase)
    one.show(AgentStatus(state, "looking for the others", None, None, 0.0))
    one._has_met = True
    one.show(AgentStatus(state, "why", None, None, 0.0))
    assert [each["event"] for each in pipes.said()] == ["state", "phase"]


def test_the_end_of_its_input_lets_it_go(pipes: Pipes) -> None:
    os.close(pipes.release)
    pipes.release = os.open("/dev/null", os.O_RDONLY)
    stage(pipes, None).hold("hold")
    assert pipes.said() == [{"event": "phase", "phase": "hold"}]
