"""What every simulation must show, whatever it simulates."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.sim.seeds import Report, Tally

ROOT = Path(__file__).parents[2]
TRACES = (
    "from {module} import run_seed\n"
    "for seed in range({seeds}): print(seed, run_seed(seed, traced=True).trace_hash())"
)


def keeps_them(run_seeds: Callable[[range], Tally], seeds: range, many: int) -> None:
    """Check that no seed breaks a promise, and that the run was hard enough to count.

    Fewer seeds than `many` cannot meet every kind of fault.
    """
    tally = run_seeds(seeds)
    assert not tally.broken_runs, "\n\n".join(map(str, tally.broken))
    if len(seeds) >= many:
        assert tally.too_easy() is None


def repeats_itself(module: str, seeds: int) -> None:
    """Check that the same seed gives the same trace in any process."""
    traces = [
        subprocess.run(
            [sys.executable, "-c", TRACES.format(module=module, seeds=seeds)],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            timeout=120,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert len(set(traces[0].split(b"\n"))) == seeds + 1


def reports(run_seed: Callable[[int], Report], module: str) -> str:
    """Check that a report says how to see it again and what went wrong; return its text."""
    report = run_seed(3)
    report.failures.append("S1: a made-up violation")
    text = str(report)
    assert f"again: python -m {module} --seed 3" in text
    assert "a made-up violation" in text
    return text


def is_the_same_when_traced(run_seed: Callable[..., Report]) -> None:
    """Check that tracing does not change a run."""
    plain, traced = run_seed(5), run_seed(5, traced=True)
    assert (plain.counts, plain.faults) == (traced.counts, traced.faults)
    assert plain.trace is None
    assert traced.trace


class CommonPromises:
    """The tests that every simulation has; a subclass says which one, and what to try.

    `sim` is its module, with `run_seed` and `draw_plan`; `traces` is how many seeds are traced
    twice, `plans` how many are drawn.
    """

    sim: Any
    traces = 20
    plans = 300

    def test_the_same_seed_gives_the_same_trace_in_any_process(self) -> None:
        repeats_itself(self.sim.__name__, self.traces)

    def test_a_report_says_how_to_see_it_again_and_all_that_went_wrong(self) -> None:
        text = reports(self.sim.run_seed, self.sim.__name__.removesuffix(".sim"))
        plan = self.sim.draw_plan(3)
        for line in (*str(plan).split("\n"), *map(str, plan.faults.incidents)):
            assert line in text

    def test_tracing_does_not_change_a_run(self) -> None:
        is_the_same_when_traced(self.sim.run_seed)

    def test_plans_differ_between_seeds_and_not_between_draws(self) -> None:
        assert self.sim.draw_plan(1) == self.sim.draw_plan(1)
        assert len({str(self.sim.draw_plan(seed)) for seed in range(self.plans)}) == self.plans
