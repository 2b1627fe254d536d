"""The manual clock moves when told, and never back."""

from __future__ import annotations

import math
import threading

import pytest

from holdfast.clock import Clock, Deadline
from holdfast.errors import UsageError
from holdfast.testing.clock import ManualClock


def test_time_stands_still_until_it_is_advanced() -> None:
    clock: Clock = ManualClock(start=5.0)
    assert (clock.monotonic(), clock.boot()) == (5.0, 5.0)
    assert clock.monotonic() == 5.0


def test_advance_and_sleep_move_all_three_clocks() -> None:
    clock = ManualClock(start=5.0, wall_offset=100.0)
    assert clock.advance(1.5) == 6.5
    clock.sleep(0.5)
    assert (clock.monotonic(), clock.boot(), clock.wall()) == (7.0, 7.0, 107.0)


def test_the_wall_clock_may_jump_alone() -> None:
    clock = ManualClock(start=5.0, wall_offset=100.0)
    clock.wall_offset -= 3600
    assert (clock.monotonic(), clock.wall()) == (5.0, -3495.0)


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_time_never_goes_back(seconds: float) -> None:
    clock = ManualClock()
    with pytest.raises(UsageError, match="zero or more"):
        clock.advance(seconds)


def test_deadlines_follow_it() -> None:
    clock = ManualClock()
    deadline = Deadline.after(2.0, clock)
    clock.advance(1.0)
    assert deadline.remaining() == 1.0
    clock.advance(1.0)
    assert deadline.passed()


def test_no_advance_is_lost_between_threads() -> None:
    clock = ManualClock(start=0.0)
    threads = [
        threading.Thread(target=lambda: [clock.advance(1.0) for _ in range(500)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert clock.monotonic() == 2000.0
