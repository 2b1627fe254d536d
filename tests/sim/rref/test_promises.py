"""Remote references keep their promises in thousands of faulty runs, and in a small scope."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.rpc.rref_answers import Memory
from holdfast.rpc.rref_protocol import References
from tests.sim.promises import is_the_same_when_traced, keeps_them, repeats_itself, reports
from tests.sim.rref.plan import draw_plan
from tests.sim.rref.scope import MAKER, OWNER, THIRD, explore
from tests.sim.rref.sim import run_seed, run_seeds

SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Two thousand seeds, in shares that several processes can run side by side."""
    keeps_them(run_seeds, sim_range(2000)[share::SHARES], many=500)


def test_a_seed_that_broke_a_promise_once() -> None:
    """The owner dies before it counts a child, and its parent never hears of that death."""
    assert run_seed(963350426945).failures == []


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    repeats_itself("tests.sim.rref.sim", 20)


def test_a_report_says_how_to_see_it_again_and_all_that_went_wrong() -> None:
    text = reports(run_seed, "tests.sim.rref")
    for incident in draw_plan(3).faults.incidents:
        assert str(incident) in text


def test_tracing_does_not_change_a_run() -> None:
    is_the_same_when_traced(run_seed)


def test_plans_differ_between_seeds_and_not_between_draws() -> None:
    assert draw_plan(1) == draw_plan(1)
    plans = [draw_plan(seed) for seed in range(300)]
    assert len({str(plan) for plan in plans}) == 300
    assert {plan.workers for plan in plans} == {2, 3, 4, 5, 6, 8}


# All of a small scope: 95,000 states together.

SCRIPTS = {
    "passed on": (6354, {OWNER: (), MAKER: ("make", THIRD, "drop"), THIRD: ("drop",)}),
    "by the owner": (
        15486,
        {OWNER: (THIRD, "drop"), MAKER: ("make", OWNER, "drop"), THIRD: ("drop",)},
    ),
    "in a circle": (
        44764,
        {OWNER: ("drop",), MAKER: ("make", THIRD, "drop"), THIRD: (OWNER, "drop")},
    ),
    "to itself": (28965, {OWNER: ("make", OWNER, THIRD, "drop", "drop"), THIRD: ("drop",)}),
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
        patch.setattr(References, "come_to_nothing", lambda self, ticket: [])
        assert any("left" in text for text in explore(scripts, states)[2])
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "__contains__", lambda self, key: False)
        assert any("left" in text or "made twice" in text for text in explore(scripts, states)[2])
