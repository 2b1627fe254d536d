"""Raft keeps its promises in three thousand faulty networks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.promises import is_the_same_when_traced, keeps_them, repeats_itself, reports
from tests.sim.raft.sim import draw_plan, run_seed, run_seeds

SHARES = 8


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Three thousand seeds, in shares that several processes can run side by side."""
    keeps_them(run_seeds, sim_range(3000)[share::SHARES], many=100)


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    repeats_itself("tests.sim.raft.sim", 12)


def test_a_report_says_how_to_see_it_again_and_all_that_went_wrong() -> None:
    text = reports(run_seed, "tests.sim.raft")
    plan = draw_plan(3)
    for incident in (*plan.faults.incidents, *plan.cuts):
        assert str(incident) in text


def test_tracing_does_not_change_a_run() -> None:
    is_the_same_when_traced(run_seed)


def test_plans_differ_between_seeds_and_not_between_draws() -> None:
    assert draw_plan(1) == draw_plan(1)
    assert len({str(draw_plan(seed)) for seed in range(50)}) == 50
