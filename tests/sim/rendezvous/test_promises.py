"""The nodes of a run keep their promises in thousands of faulty clusters, and scale."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.rendezvous.model import PAGE_MEMBERS
from tests.sim.promises import CommonPromises, keeps_them
from tests.sim.rendezvous import sim
from tests.sim.rendezvous.sim import Ending, count_operations, draw_plan, run_seeds

SHARES = 8


class TestPromises(CommonPromises):
    sim = sim


def test_plans_have_every_ending_and_few_nodes_or_many() -> None:
    plans = [draw_plan(seed) for seed in range(300)]
    assert {plan.ending for plan in plans} == {*Ending}
    assert {len(plan.nodes) for plan in plans} >= {2, 16}


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Two thousand seeds, in shares that several processes can run side by side."""
    keeps_them(run_seeds, sim_range(2000)[share::SHARES], many=100)


# Scale.


def test_store_operations_of_a_node_do_not_grow_with_the_number_of_nodes() -> None:
    small, middle, large = (count_operations(nodes) for nodes in (10, 100, 1000))
    assert max(small[1]) == max(middle[1]) == max(large[1]) <= 6
    # The leader tells its progress now and then, and writes the members down by pages; nothing that
    # it does grows faster than the joins.
    pages = 1000 // PAGE_MEMBERS
    assert large[0] - pages <= middle[0] + 5 <= small[0] + 10
