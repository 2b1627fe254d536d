"""Calls that are repeated run at most once, in thousands of faulty runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.once.sim import draw_plan, run_seed, run_seeds
from tests.sim.promises import is_the_same_when_traced, keeps_them, repeats_itself, reports

SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """AN-2, AN-4, IS-1, IS-2, IS-3, IS-5, RC-1, RC-2: a thousand seeds, in shares."""
    keeps_them(run_seeds, sim_range(1000)[share::SHARES], many=250)


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    repeats_itself("tests.sim.once.sim", 20)


def test_a_report_says_how_to_see_it_again_and_all_that_went_wrong() -> None:
    text = reports(run_seed, "tests.sim.once")
    for incident in draw_plan(3).faults.incidents:
        assert str(incident) in text


def test_tracing_does_not_change_a_run() -> None:
    is_the_same_when_traced(run_seed)


def test_plans_differ_between_seeds_and_not_between_draws() -> None:
    assert draw_plan(1) == draw_plan(1)
    plans = [draw_plan(seed) for seed in range(300)]
    assert len({str(plan) for plan in plans}) == 300
    assert {plan.workers for plan in plans} == {2, 3, 4, 5}
