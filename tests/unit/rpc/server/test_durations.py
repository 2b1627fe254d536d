"""Which functions take long."""

from __future__ import annotations

from holdfast.rpc.server.durations import SLOW_S, Durations


def test_du1_a_function_is_slow_after_one_slow_run_and_quick_after_quick_ones() -> None:
    durations = Durations()
    durations.record("quick", SLOW_S / 2)
    assert durations.slow == {}
    durations.record("slow", 2 * SLOW_S)
    assert "slow" in durations.slow
    runs = 0
    while "slow" in durations.slow:
        durations.record("slow", 0.0)
        runs += 1
    assert runs == 5  # (3/4)^5 of twice the limit is less than half of it
    durations.record("slow", SLOW_S)
    assert durations.slow == {"slow": SLOW_S}


def test_du1_one_quick_run_of_a_slow_function_changes_little() -> None:
    durations = Durations()
    durations.record("slow", 4 * SLOW_S)
    durations.record("slow", 0.0)
    assert durations.slow == {"slow": 3 * SLOW_S}


def test_du2_the_oldest_is_forgotten() -> None:
    durations = Durations(names_max=2)
    for name in ("a", "b", "c"):
        durations.record(name, SLOW_S)
    assert list(durations.slow) == ["b", "c"]
