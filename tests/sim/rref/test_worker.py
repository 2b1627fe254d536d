"""One simulated worker: what it gives, begs for and sees to when no answer comes."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.rpc.wire.messages import Kind
from holdfast.testing.faultplan import FaultPlan
from tests.sim.rref.plan import RRefPlan
from tests.sim.rref.sim import RRefSim
from tests.sim.rref.worker import ANSWER_S, BEG, Frame, Worker

QUIET = RRefPlan(FaultPlan(calm_at=5.0), 2, 1e9, frozenset(), 1 << 16)


class World(RRefSim):
    """Two workers that do what they are told; messages of some kinds are lost."""

    def __init__(self) -> None:
        super().__init__(1, QUIET)
        self.lost: set[Kind] = set()
        self.sent: list[Kind] = []
        self.one, self.two = (worker for worker in self.workers.values())

    def send(self, frame: Frame) -> None:
        self.sent.append(frame.kind)
        if frame.kind not in self.lost:
            super().send(frame)


@pytest.fixture
def world() -> World:
    return World()


def make(worker: Worker) -> Any:
    worker._make(worker.me)
    while worker.handles[-1].fork is not None:  # asked for as others ask
        worker.drop(worker.handles[-1])
        worker._make(worker.me)
    return worker.handles[-1]


def test_a_gift_and_an_answer_bring_a_reference(world: World) -> None:
    handle = make(world.one)
    world.one._give(handle, world.two.me)
    world.two._beg(world.one.me)
    world.sim.run(1.0)
    assert [held.reference for held in world.two.handles] == [handle.reference] * 2
    assert world.one.references.counts()["forks"] == 2
    assert Kind.RREF_UNREAD not in world.sent


@pytest.mark.parametrize("lost", [Kind.REPLY, BEG, Kind.PYTHON_CALL])
def test_what_is_not_answered_comes_to_nothing(world: World, lost: Kind) -> None:
    handle = make(world.one)
    world.lost = {lost}
    world.one._give(handle, world.two.me)
    world.two._beg(world.one.me)
    world.sim.run(ANSWER_S + 0.01)
    world.lost = set()
    for held in list(world.two.handles):
        world.two.drop(held)
    world.sim.run(10.0)
    assert Kind.RREF_UNREAD in world.sent
    assert world.one.references.counts()["forks"] == 0
    assert not any(world.two.references.counts().values())


def test_a_worker_without_references_gives_none(world: World) -> None:
    world.two._beg(world.one.me)
    world.sim.run(1.0)
    assert world.two.handles == []


def test_unknown_workers_are_not_served(world: World) -> None:
    world.one.strangers = frozenset({world.two.me})
    world.two._make(world.one.me)
    world.sim.run(1.0)
    assert world.one.values == set()
