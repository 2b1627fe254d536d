"""Which workers are slower than the others."""

from __future__ import annotations

from holdfast.control.stragglers import find_stragglers


def test_a_worker_at_half_the_medians_pace_is_a_straggler() -> None:
    assert find_stragglers({0: 10.0, 1: 10.0, 2: 5.0, 3: 5.1}) == {}
    assert find_stragglers({0: 10.0, 1: 10.0, 3: 1.0, 2: 5.0, 4: 10.0}) == {2: 0.5, 3: 0.1}


def test_of_two_workers_or_idle_ones_none_is() -> None:
    assert find_stragglers({0: 10.0, 1: 1.0}) == {}
    assert find_stragglers({0: 0.0, 1: 0.0, 2: 0.0}) == {}
    assert find_stragglers({}) == {}
