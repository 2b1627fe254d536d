"""The agents of a job keep their promises in hundreds of faulty clusters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.testing.agentsim import draw_plan, run_seed, run_seeds
from tests.sim.promises import is_the_same_when_traced, keeps_them, repeats_itself, reports

SHARES = 2


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Four hundred seeds, in shares that several processes can run side by side."""
    keeps_them(run_seeds, sim_range(400)[share::SHARES], many=100)


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    repeats_itself("holdfast.testing.agentsim", 10)


def test_a_report_says_how_to_see_it_again_and_all_that_went_wrong() -> None:
    text = reports(run_seed, "holdfast.testing.agentsim")
    assert f"{len(draw_plan(3).nodes)} nodes" in text


def test_tracing_does_not_change_a_run() -> None:
    is_the_same_when_traced(run_seed)
