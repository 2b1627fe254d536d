"""A replicated store keeps its promises in hundreds of faulty networks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.promises import CommonPromises, keeps_them
from tests.sim.replica import sim
from tests.sim.replica.sim import run_seeds

SHARES = 8


class TestPromises(CommonPromises):
    sim = sim
    traces = 6
    plans = 50


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Three hundred seeds, in shares that several processes can run side by side."""
    keeps_them(run_seeds, sim_range(300)[share::SHARES], many=100)
