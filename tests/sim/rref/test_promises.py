"""Remote references keep their promises in thousands of faulty runs, and in a small scope."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.rpc.rref.protocol import References
from holdfast.rpc.rref.reply_references import RecentKeys
from tests.sim.promises import CommonPromises, keeps_them
from tests.sim.rref import sim
from tests.sim.rref.plan import draw_plan
from tests.sim.rref.scope import MAKER, OWNER, THIRD, explore
from tests.sim.rref.sim import run_seed, run_seeds

SHARES = 4


class TestPromises(CommonPromises):
    sim = sim


def test_plans_have_every_number_of_workers() -> None:
    assert {draw_plan(seed).workers for seed in range(300)} == {2, 3, 4, 5, 6, 8}


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Two thousand seeds, in shares that several processes can run side by side."""
    keeps_them(run_seeds, sim_range(2000)[share::SHARES], many=500)


ONCE_BROKEN = {
    963350426945: "the owner dies before it counts a child; the parent never hears of that death",
    # The owner still answers after a worker has heard of its end.
    904857797641: "the worker that is refused has heard of it, its parent has not",
    904857826460: "the same, and what was given is dropped before it is counted",
    904857834070: "the parent hears of it while it deletes its own fork",
    904857861600: "the owner is cut off from the worker that asks",
    904857897703: "the parent's delete and the child's request cross",
}


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_a_seed_that_broke_a_promise_once(seed: int) -> None:
    assert run_seed(seed).failures == [], ONCE_BROKEN[seed]


# All of a small scope: 102,000 states together.

SCRIPTS = {
    "passed on": (10268, {OWNER: (), MAKER: ("make", THIRD, "drop"), THIRD: ("drop",)}),
    "by the owner": (
        15043,
        {OWNER: (THIRD, "drop"), MAKER: ("make", OWNER, "drop"), THIRD: ("drop",)},
    ),
    "in a circle": (
        50376,
        {OWNER: ("drop",), MAKER: ("make", THIRD, "drop"), THIRD: (OWNER, "drop")},
    ),
    "to itself": (26123, {OWNER: ("make", OWNER, THIRD, "drop", "drop"), THIRD: ("drop",)}),
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
        patch.setattr(References, "_child_ended", lambda self, child: [])
        assert any("left" in text for text in explore(scripts, states)[2])
    with monkeypatch.context() as patch:
        patch.setattr(References, "come_to_nothing", lambda self, ticket: [])
        assert any("left" in text for text in explore(scripts, states)[2])
    with monkeypatch.context() as patch:
        patch.setattr(RecentKeys, "__contains__", lambda self, key: False)
        assert any("left" in text or "made twice" in text for text in explore(scripts, states)[2])
    take = References.take
    with monkeypatch.context() as patch:
        patch.setattr(
            References, "take", lambda self, one, *how: [*take(self, one), *self._accept(one)]
        )
        assert any("refused" in text for text in explore(scripts, states)[2])
