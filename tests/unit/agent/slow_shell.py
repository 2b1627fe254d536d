"""A shell of the agent's machine that does everything late, and checks its guarantees."""

from __future__ import annotations

import random
from collections.abc import Callable
from signal import SIGTERM

from holdfast.agent.effects import (
    CountFailure,
    Effect,
    Finish,
    Join,
    Meet,
    Publish,
    StartWorkers,
    Stop,
)
from holdfast.agent.machine import AgentMachine, Terms
from holdfast.errors import StoreUnavailable
from tests.unit.agent.stories import ended_well, failed, failure, place


class SlowShell:
    """Performs effects as the real one may at its slowest, and checks the guarantees meanwhile."""

    def __init__(self, seed: int, terms: Terms) -> None:
        self.terms = terms
        self.rng = random.Random(seed)
        self.machine = AgentMachine(terms)
        self.alive: set[int] = set()
        self.group = self.joining = self.counting = self.ended = False
        self.round = 0
        self.count = 0

    def run(self) -> None:
        self.machine.start()
        self.perform()
        for _ in range(60):
            self.rng.choice(self.possible())()
            self.perform()

    def possible(self) -> list[Callable[[], None]]:
        """Return what may happen now."""
        machine, rng = self.machine, self.rng
        acts: list[Callable[[], None]] = [
            lambda: machine.round_over("over", 1.0),
            lambda: machine.newcomers(1, 1.0),
            lambda: machine.peer_told(self.round, 1, (failure(2),), rng.random() < 0.5, 1.0),
            lambda: machine.tick(rng.choice((1.0, 9.0))),
            lambda: machine.met(self.round, rng.choice((None, "late")), 1.0),
        ]
        if rng.random() < 0.1:
            acts += [
                lambda: machine.signalled(SIGTERM, 1.0),
                lambda: machine.run_ended("closed", rng.random() < 0.5, 1.0),
                lambda: machine.broke(StoreUnavailable("no store")),
            ]
        if self.joining:
            acts += [self.join] * 4
        if self.counting:
            acts += [self.tell_count] * 4
        acts += [self.exit] * 3 if self.alive else [self.end_group] * 3 if self.group else []
        return acts

    def join(self) -> None:
        self.joining = False
        self.round += 1
        self.machine.joined(place(self.round, nodes=2, failures=self.count), 0.0)

    def tell_count(self) -> None:
        self.counting = False
        self.count += 1
        self.machine.counted(self.count, (), 0.0, 1.0)

    def exit(self) -> None:
        rank = self.alive.pop()
        bad = self.rng.random() < 0.4
        self.machine.worker_exited(failed(failure(rank)) if bad else ended_well(rank), 1.0)

    def end_group(self) -> None:
        self.group = False
        stuck = (7,) if self.rng.random() < 0.05 else ()
        self.machine.group_ended(stuck, 1.0)

    def perform(self) -> None:
        effects = self.machine.take_effects()
        assert not (self.ended and effects)  # AG-8
        if any(isinstance(one, CountFailure) for one in effects):
            kinds = [type(effect) for effect in effects]
            assert kinds.index(CountFailure) < kinds.index(Publish) < kinds.index(Stop)  # AG-4
        for effect in effects:
            self.perform_one(effect)

    def perform_one(self, effect: Effect) -> None:
        match effect:
            case Join():
                assert not self.group  # AG-1
                assert not self.joining  # AG-2
                self.joining = True
            case StartWorkers(where):
                assert not self.group  # AG-1
                assert where.failures <= self.terms.budget.max_restarts  # AG-3
                self.group, self.alive = True, set(range(where.workers))
            case Stop():
                self.alive = set()  # they end, one way or another
            case Meet():
                assert not self.alive
            case Finish():
                self.ended = True
            case CountFailure():
                self.counting = True
            case _:
                pass
