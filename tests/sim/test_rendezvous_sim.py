"""The nodes of a run keep their promises in thousands of faulty clusters, and scale."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from holdfast.testing.cluster import Ending, count_operations, draw_plan, run_seed, run_seeds

HASHES = (
    "from holdfast.testing.cluster import run_seed\n"
    "for seed in range(20): print(seed, run_seed(seed, traced=True).trace_hash())"
)

SHARES = 16


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Two thousand seeds, in shares that several processes can run side by side."""
    seeds = sim_range(2000)[share::SHARES]
    tally = run_seeds(seeds)
    assert not tally.broken_runs, "\n\n".join(map(str, tally.broken))
    if len(seeds) >= 100:  # a few seeds cannot meet every kind of fault
        assert tally.too_easy() is None


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-c", HASHES],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            timeout=120,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert len(set(traces[0].split(b"\n"))) == 21


def test_a_report_says_how_to_see_it_again_and_all_that_went_wrong() -> None:
    report = run_seed(3)
    report.failures.append("S1: a made-up violation")
    text = str(report)
    assert "again: python -m holdfast.testing.cluster --seed 3" in text
    assert "a made-up violation" in text
    for incident in report.plan.faults.incidents:
        assert str(incident) in text


def test_tracing_does_not_change_a_run() -> None:
    plain, traced = run_seed(5), run_seed(5, traced=True)
    assert (plain.counts, plain.faults) == (traced.counts, traced.faults)
    assert plain.trace is None
    assert traced.trace


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
