"""When to look before one sleeps."""

from __future__ import annotations

from holdfast.rpc.eagerness import RARELY, SHORT_S, Eagerness

LONG_S, QUICK_S = SHORT_S, SHORT_S / 2


def waits_until_it_looks(eager: Eagerness) -> int:
    count = 0
    while not eager.now:
        eager.slept(QUICK_S)
        count += 1
        assert count <= RARELY
    return count


def test_eg1_nobody_looks_at_first_nor_after_long_waits() -> None:
    eager = Eagerness(cores=2)
    for _ in range(10 * RARELY):
        assert not eager.now
        eager.slept(LONG_S)
    assert waits_until_it_looks(eager) > 1


def test_eg1_with_a_single_core_nobody_ever_looks() -> None:
    eager = Eagerness(cores=1)
    for _ in range(10 * RARELY):
        eager.slept(QUICK_S)
    assert not eager.now


def test_eg2_what_comes_to_nothing_is_tried_ever_more_rarely() -> None:
    eager = Eagerness(cores=2)
    pauses = []
    for _ in range(10):
        pauses.append(waits_until_it_looks(eager))
        eager.looked(with_success=False)
        assert not eager.now
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[1] < pauses[-1] == RARELY


def test_eg2_where_it_pays_it_is_done_every_time_and_soon_again_after_a_failure() -> None:
    eager = Eagerness(cores=2)
    for _ in range(10):
        waits_until_it_looks(eager)
        eager.looked(with_success=False)
    waits_until_it_looks(eager)
    for _ in range(20):
        eager.looked(with_success=True)
        assert eager.now
    eager.looked(with_success=False)
    assert waits_until_it_looks(eager) <= 4
