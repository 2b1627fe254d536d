"""The agents of a job keep their promises in hundreds of faulty clusters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from holdfast.testing.agentsim import draw_plan, run_seed, run_seeds

HASHES = (
    "from holdfast.testing.agentsim import run_seed\n"
    "for seed in range(10): print(seed, run_seed(seed, traced=True).trace_hash())"
)

SHARES = 2


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Four hundred seeds, in shares that several processes can run side by side."""
    seeds = sim_range(400)[share::SHARES]
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
    assert len(set(traces[0].split(b"\n"))) == 11


def test_a_report_says_how_to_see_it_again_and_all_that_went_wrong() -> None:
    report = run_seed(3)
    report.failures.append("S6: a made-up violation")
    text = str(report)
    assert "again: python -m holdfast.testing.agentsim --seed 3" in text
    assert "a made-up violation" in text
    assert f"{len(draw_plan(3).nodes)} nodes" in text


def test_tracing_does_not_change_a_run() -> None:
    plain, traced = run_seed(5), run_seed(5, traced=True)
    assert (plain.counts, plain.faults) == (traced.counts, traced.faults)
    assert plain.trace is None
    assert traced.trace
