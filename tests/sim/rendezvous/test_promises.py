"""The nodes of a run keep their promises in thousands of faulty clusters, and scale."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.promises import is_the_same_when_traced, keeps_them, repeats_itself, reports
from tests.sim.rendezvous.sim import Ending, count_operations, draw_plan, run_seed, run_seeds

SHARES = 16


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Two thousand seeds, in shares that several processes can run side by side."""
    keeps_them(run_seeds, sim_range(2000)[share::SHARES], many=100)


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    repeats_itself("tests.sim.rendezvous.sim", 20)


def test_a_report_says_how_to_see_it_again_and_all_that_went_wrong() -> None:
    text = reports(run_seed, "tests.sim.rendezvous")
    for incident in draw_plan(3).faults.incidents:
        assert str(incident) in text


def test_tracing_does_not_change_a_run() -> None:
    is_the_same_when_traced(run_seed)


def test_plans_differ_between_seeds_and_not_between_draws() -> None:
    assert draw_plan(1) == draw_plan(1)
    plans = [draw_plan(seed) for seed in range(300)]
    assert len({str(plan) for plan in plans}) == 300
    assert {plan.ending for plan in plans} == {*Ending}
    assert {len(plan.nodes) for plan in plans} >= {2, 16}


# Scale.


def test_store_operations_of_a_node_do_not_grow_with_the_number_of_nodes() -> None:
    small, middle, large = (count_operations(nodes) for nodes in (10, 100, 1000))
    assert max(small[1]) == max(middle[1]) == max(large[1]) <= 6
    # The leader tells its progress now and then; nothing that it does grows faster than the joins.
    assert large[0] <= middle[0] + 5 <= small[0] + 10
