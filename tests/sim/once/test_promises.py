"""Calls that are repeated run at most once, in thousands of faulty runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.once import sim
from tests.sim.once.sim import draw_plan, run_seeds
from tests.sim.promises import CommonPromises, keeps_them

SHARES = 4


class TestPromises(CommonPromises):
    sim = sim


def test_plans_have_every_number_of_workers() -> None:
    assert {draw_plan(seed).workers for seed in range(300)} == {2, 3, 4, 5}


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """AN-2, AN-4, IS-1, IS-2, IS-3, IS-5, RC-1, RC-2: a thousand seeds, in shares."""
    keeps_them(run_seeds, sim_range(1000)[share::SHARES], many=250)
