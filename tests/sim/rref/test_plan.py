"""Plans of simulated references: the seed decides everything, and everything is decided."""

from __future__ import annotations

from holdfast.testing.faultplan import Crash, Partition, Pause
from tests.sim.rref.plan import draw_plan


def test_the_same_seed_gives_the_same_plan() -> None:
    assert draw_plan(7) == draw_plan(7)
    assert len({str(draw_plan(seed)) for seed in range(50)}) == 50


def test_seeds_draw_worlds_of_every_size_and_every_kind_of_trouble() -> None:
    plans = [draw_plan(seed) for seed in range(300)]
    assert {plan.workers for plan in plans} == {2, 3, 4, 5, 6, 8}
    kinds = {type(incident) for plan in plans for incident in plan.faults.incidents}
    assert kinds == {Crash, Partition, Pause}
    assert any(plan.targeted_crashes for plan in plans)


def test_a_plan_says_what_it_does() -> None:
    plan = draw_plan(3)
    assert str(plan).startswith(f"{plan.workers} workers, each does something every ")
    assert str(plan.faults) in str(plan)
