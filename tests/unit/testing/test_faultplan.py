"""Plans of faults: drawn from a seed, within bounds, and printed in full."""

from __future__ import annotations

import random

from holdfast.testing.faultplan import (
    Break,
    Crash,
    FaultPlan,
    Partition,
    Pause,
    Rates,
    draw_partition,
    draw_pause,
    draw_rates,
)


def test_a_plan_prints_all_that_will_happen() -> None:
    incidents = (
        Partition(1.0, 2.0, "a", "b", one_way=True),
        Pause(3.0, 4.0, "a"),
        Crash(5.0, "b", back=6.0, silent=True),
        Break(7.0, "a"),
    )
    text = str(FaultPlan(rates=Rates(drop=0.25), incidents=incidents, calm_at=9.0))
    assert "drop 0.2500" in text
    assert "calm at 9.0 s" in text
    for incident in incidents:
        assert str(incident) in text


def test_the_same_seed_draws_the_same() -> None:
    def draw() -> list[object]:
        rng = random.Random(7)
        pairs = [("a", "s"), ("b", "s")]
        return [
            draw_rates(rng),
            draw_partition(rng, pairs, 30.0, 5.0),
            draw_pause(rng, ["a", "b"], 30.0, 5.0),
        ]

    assert draw() == draw()


def test_what_is_drawn_is_over_in_time_and_of_every_kind() -> None:
    rng = random.Random(1)
    partitions = [draw_partition(rng, [("a", "s")], 30.0, 5.0) for _ in range(200)]
    assert all(0 <= one.at <= one.until <= 30.0 for one in partitions)
    assert all(one.until - one.at <= 5.0 for one in partitions)
    kinds = {(one.source, one.one_way, one.breaks) for one in partitions}
    assert len(kinds) == 8
    pauses = [draw_pause(rng, ["a", "b"], 3.0, 5.0) for _ in range(200)]
    assert all(0 <= one.at <= one.until <= 3.0 for one in pauses)
    assert {one.host for one in pauses} == {"a", "b"}


def test_rates_leave_out_every_kind_now_and_then() -> None:
    rng = random.Random(1)
    rates = [draw_rates(rng) for _ in range(100)]
    for name in ("drop", "reset", "delay", "duplicate", "reorder"):
        values = [getattr(one, name) for one in rates]
        assert 20 < values.count(0.0) < 80
        assert max(values) < 0.2
