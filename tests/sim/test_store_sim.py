"""The store's machines keep their promises in a thousand faulty networks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from holdfast.testing.faultplan import Fault
from holdfast.testing.storesim import draw_plan, run_seed, run_seeds

HASHES = (
    "from holdfast.testing.storesim import run_seed\n"
    "for seed in range(12): print(seed, run_seed(seed, traced=True).trace_hash())"
)


SHARES = 8


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """A thousand seeds, in shares that several processes can run side by side."""
    seeds = sim_range(1000)[share::SHARES]
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
    assert len(set(traces[0].split(b"\n"))) == 13


def test_a_report_says_how_to_see_it_again_and_all_that_went_wrong() -> None:
    report = run_seed(3)
    report.failures.append("K1: a made-up violation")
    text = str(report)
    assert "python -m holdfast.testing.storesim --seed 3" in text
    assert "a made-up violation" in text
    for incident in report.plan.faults.incidents:
        assert str(incident) in text


def test_tracing_does_not_change_a_run() -> None:
    plain, traced = run_seed(5), run_seed(5, traced=True)
    assert (plain.counts, plain.faults) == (traced.counts, traced.faults)
    assert plain.trace is None
    assert traced.trace


def test_runs_that_were_too_easy_do_not_count() -> None:
    tally = run_seeds(range(3))
    tally.faults[Fault.PARTITION] = 0
    tally.counts["completed"] = 100
    text = tally.too_easy()
    assert text is not None
    assert "partition struck 0 times" in text
    assert "only 100 completed" in text


def test_plans_differ_between_seeds_and_not_between_draws() -> None:
    assert draw_plan(1) == draw_plan(1)
    assert len({str(draw_plan(seed)) for seed in range(50)}) == 50
