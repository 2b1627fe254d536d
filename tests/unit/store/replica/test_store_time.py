"""The store's time never goes back, and passes only by the clock of a leader."""

from __future__ import annotations

from holdfast.store.replica.store_time import StoreTime


def test_time_stands_still_without_a_leader_here() -> None:
    time = StoreTime(5.0)
    assert (time.at(100.0), time.passes) == (5.0, False)
    assert (time.reach(7.0), time.reach(6.0)) == (7.0, 7.0)
    time.lead(100.0)
    assert (time.at(103.0), time.passes) == (10.0, True)
    time.reach(9.0)
    assert time.at(103.0) == 10.0
    time.follow()
    assert (time.at(110.0), time.passes) == (9.0, False)
