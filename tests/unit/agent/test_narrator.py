"""What an agent tells of its work."""

from __future__ import annotations

from signal import SIGTERM
from typing import Any

import pytest

from holdfast.agent.attempt import Membership
from holdfast.agent.narrator import Narrator
from holdfast.agent.outcome import Ending, Outcome
from holdfast.agent.roles import NodeInfo, divide
from holdfast.observe.events import (
    AgentSignalled,
    JobEnded,
    JobFailed,
    WorkerFailed,
    WorkersFinished,
    WorkersRestarting,
    WorkersStarted,
    WorkersStopping,
)
from holdfast.observe.metrics import Metrics
from holdfast.observe.sinks import MemorySink
from holdfast.rendezvous.handler import Round
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from tests.unit.agent.stories import failure


class Told:
    """A narrator and what it has told."""

    def __init__(self) -> None:
        self.sink, self.metrics = MemorySink(), Metrics()
        self.narrator = Narrator("job", self.sink, self.metrics, ManualClock())

    def last(self) -> Any:
        return self.sink.events[-1]


@pytest.fixture
def told() -> Told:
    told = Told()
    with MemoryStore() as store:
        here = Round(3, 1, 2, store, store, "a", 1, (), "", 2)
        nodes = (NodeInfo("", 1), NodeInfo("", 2))
        membership = Membership(here, divide(nodes)[1], False)
        told.narrator.starting(membership)
        told.narrator.started(membership, {0: 70, 1: 71})
    return told


def test_what_happens_before_all_workers_are_started_belongs_to_their_round(told: Told) -> None:
    with MemoryStore() as store:
        here = Round(4, 0, 1, store, store, "a", 1, (), "", 3)
        membership = Membership(here, divide((NodeInfo("", 1),))[0], False)
        told.narrator.starting(membership)
        told.narrator.failed(failure(0))
        assert told.last().round == 4
        told.narrator.stopping(SIGTERM, 30.0, "rank 0 failed")
        assert told.last().round == 4


def test_every_step_is_an_event(told: Told) -> None:
    assert isinstance(told.last(), WorkersStarted)
    assert (told.last().ranks, told.last().pids, told.last().world_size) == ((1, 2), (70, 71), 3)
    assert (told.last().restarts, told.last().run) == (2, "job")
    told.narrator.failed(failure(2, code=-9))
    assert isinstance(told.last(), WorkerFailed)
    assert (told.last().round, told.last().rank, told.last().exit_code) == (3, 2, -9)
    told.narrator.stopping(SIGTERM, 30.0, "b is gone")
    assert isinstance(told.last(), WorkersStopping)
    assert (told.last().signal, told.last().reason) == ("SIGTERM", "b is gone")
    told.narrator.finished()
    assert isinstance(told.last(), WorkersFinished)
    assert told.last().ranks == (1, 2)
    told.narrator.restarting("b is gone", 3)
    assert isinstance(told.last(), WorkersRestarting)
    assert told.last().failures == 3
    told.narrator.signalled(SIGTERM)
    assert isinstance(told.last(), AgentSignalled)


@pytest.mark.parametrize("ending", Ending)
def test_a_bad_end_is_another_event_than_a_good_one(told: Told, ending: Ending) -> None:
    told.narrator.ended(Outcome(ending=ending, reason="so it is"))
    bad = ending in (Ending.FAILED, Ending.BROKEN)
    assert isinstance(told.last(), JobFailed if bad else JobEnded)
    assert (told.last().ending, told.last().reason) == (str(ending), "so it is")


def test_numbers_for_dashboards(told: Told) -> None:
    def value(name: str) -> float:
        (found,) = [one for one in told.metrics.snapshot() if one.name == name]
        return float(found.series[0].value)

    assert (value("holdfast_round"), value("holdfast_workers")) == (3, 2)
    told.narrator.failed(failure())
    told.narrator.restarting("", 1)
    assert value("holdfast_worker_failures_total") == 1
    assert value("holdfast_restarts_total") == 1
    assert value("holdfast_workers") == 0
