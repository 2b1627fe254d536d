"""The stage on which an agent of chaos plays: it reports, and stops in one phase, once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from holdfast.agent.agent import Status
from holdfast.agent.machine import State
from holdfast.ids import CauseId
from holdfast.observe.events import Event, RunEnded, WorkersFinished
from holdfast.testing.chaosagent import Stage
from holdfast.testing.chaosplan import Phase

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
    one.show(Status(state, "looking for the others", None, None, 0.0))
    one._has_met = True
    one.show(Status(state, "why", None, None, 0.0))
    assert [each["event"] for each in pipes.said()] == ["state", "phase"]


def test_the_end_of_its_input_lets_it_go(pipes: Pipes) -> None:
    os.close(pipes.release)
    pipes.release = os.open("/dev/null", os.O_RDONLY)
    stage(pipes, None).hold("hold")
    assert pipes.said() == [{"event": "phase", "phase": "hold"}]
