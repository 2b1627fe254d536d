"""Raft keeps its promises in three thousand faulty networks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.promises import CommonPromises, keeps_them
from tests.sim.raft import sim
from tests.sim.raft.sim import run_seeds

SHARES = 8


class TestPromises(CommonPromises):
    sim = sim
    traces = 12
    plans = 50


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Three thousand seeds, in shares that several processes can run side by side."""
    keeps_them(run_seeds, sim_range(3000)[share::SHARES], many=100)
