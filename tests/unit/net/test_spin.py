"""When to look before one sleeps."""

from __future__ import annotations

from holdfast.net.spin import SHORT_S, SKIPS_MAX, AdaptiveSpin

LONG_S, QUICK_S = SHORT_S, SHORT_S / 2


def waits_until_it_looks(eager: AdaptiveSpin) -> int:
    count = 0
    while not eager.now:
        eager.record_sleep(QUICK_S)
        count += 1
        assert count <= SKIPS_MAX
    return count


def test_eg1_no_spinning_at_first_nor_after_long_waits() -> None:
    eager = AdaptiveSpin(cores=2)
    for _ in range(10 * SKIPS_MAX):
        assert not eager.now
        eager.record_sleep(LONG_S)
    assert waits_until_it_looks(eager) > 1


def test_eg1_no_spinning_on_a_single_core() -> None:
    eager = AdaptiveSpin(cores=1)
    for _ in range(10 * SKIPS_MAX):
        eager.record_sleep(QUICK_S)
    assert not eager.now


def test_eg2_what_comes_to_nothing_is_tried_ever_more_rarely() -> None:
    eager = AdaptiveSpin(cores=2)
    pauses = []
    for _ in range(10):
        pauses.append(waits_until_it_looks(eager))
        eager.record_spin(with_success=False)
        assert not eager.now
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[1] < pauses[-1] == SKIPS_MAX


def test_eg2_where_it_pays_it_is_done_every_time_and_soon_again_after_a_failure() -> None:
    eager = AdaptiveSpin(cores=2)
    for _ in range(10):
        waits_until_it_looks(eager)
        eager.record_spin(with_success=False)
    waits_until_it_looks(eager)
    for _ in range(20):
        eager.record_spin(with_success=True)
        assert eager.now
    eager.record_spin(with_success=False)
    assert waits_until_it_looks(eager) <= 4
