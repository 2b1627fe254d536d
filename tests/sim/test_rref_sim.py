"""Remote references keep their promises in thousands of faulty runs, and in a small scope."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from holdfast.rpc.rref_protocol import References, _Memory
from holdfast.testing.rrefplan import draw_plan
from holdfast.testing.rrefsim import run_seed, run_seeds
from tests.sim.rref_scope import MAKER, OWNER, THIRD, explore

HASHES = (
    "from holdfast.testing.rrefsim import run_seed\n"
    "for seed in range(20): print(seed, run_seed(seed, traced=True).trace_hash())"
)

SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Two thousand seeds, in shares that several processes can run side by side."""
    seeds = sim_range(2000)[share::SHARES]
    tally = run_seeds(seeds)
    assert not tally.broken_runs, "\n\n".join(map(str, tally.broken))
    if len(seeds) >= 500:  # a few seeds cannot meet every kind of fault
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
    assert "again: python -m holdfast.testing.rrefsim --seed 3" in text
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
    assert {plan.workers for plan in plans} == {2, 3, 4, 5, 6, 8}


# All of a small scope: 66,000 states together.

SCRIPTS = {
    "passed on": (5142, {OWNER: (), MAKER: ("make", THIRD, "drop"), THIRD: ("drop",)}),
    "by the owner": (
        11312,
        {OWNER: (THIRD, "drop"), MAKER: ("make", OWNER, "drop"), THIRD: ("drop",)},
    ),
    "in a circle": (
        33322,
        {OWNER: ("drop",), MAKER: ("make", THIRD, "drop"), THIRD: (OWNER, "drop")},
    ),
    "to itself": (16477, {OWNER: ("make", OWNER, THIRD, "drop", "drop"), THIRD: ("drop",)}),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_order_of_events_with_one_fault_breaks_a_promise(name: str) -> None:
    """RR-1, RR-2, RR-3, RR-5 and RR-6, in every state that can be reached."""
    states, scripts = SCRIPTS[name]
    visited, ends, wrong = explore(scripts, 200_000)
    assert not wrong, wrong[0]
    assert ends > 0
    assert visited == states


def test_the_small_scope_finds_bugs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    states, scripts = SCRIPTS["passed on"]
    with monkeypatch.context() as patch:
        patch.setattr(References, "_child_settled", lambda self, child: [])
        assert any("left" in text for text in explore(scripts, states)[2])
    with monkeypatch.context() as patch:
        patch.setattr(_Memory, "__contains__", lambda self, key: False)
        assert any("left" in text or "made twice" in text for text in explore(scripts, states)[2])
