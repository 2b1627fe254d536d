"""Bugs that tests plant into the machines: a simulation must find each of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pytest

from tests.sim.seeds import RunSeed

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


class _Bug(NamedTuple):
    plant: Plant
    promise: str
    seeds: range
    only: Callable[[Any], bool]


class PlantedBugs(dict[str, _Bug]):
    """The bugs of one simulation, by their names.

    `may_raise` says whether machines with a bug may raise an error, which is found as such. For
    others, that would be a bug in its planting.
    """

    def __init__(
        self, run_seed: RunSeed, draw_plan: Callable[[int], Any], *, may_raise: bool = False
    ) -> None:
        super().__init__()
        self._run_seed = run_seed
        self._draw_plan = draw_plan
        self._may_raise = may_raise

    def bug(
        self,
        promise: str,
        seeds: int,
        only: Callable[[Any], bool] = lambda plan: True,
        first: int = 0,
    ) -> Callable[[Plant], Plant]:
        """Register a bug that must be found as a breach of this promise within so many seeds.

        `only` leaves out the plans in which what the bug is about cannot happen; `first` says
        where to begin, for a bug that is found too rarely.
        """

        def register(plant: Plant) -> Plant:
            self[plant.__name__] = _Bug(plant, promise, range(first, first + seeds), only)
            return plant

        return register

    def check(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Plant a bug, and run seeds until one finds it; fail if none does."""
        plant, promise, seeds, only = self[name]
        plant(monkeypatch)
        breach = re.compile(rf"\b{re.escape(promise)}")  # "R" stands for R1, R2, …
        for seed in filter(lambda seed: only(self._draw_plan(seed)), seeds):
            failures = self._run_seed(seed).failures
            if any(map(breach.search, failures)):
                raised = [text for text in failures if "Traceback" in text]
                assert self._may_raise or not raised, raised
                return
        pytest.fail(f"{name}: not found as a breach of {promise} in {seeds}")
