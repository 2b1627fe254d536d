"""Time is read in one place; timeouts are checked, and deadlines kept, everywhere the same way."""

from __future__ import annotations

import math
import time
from datetime import datetime

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline, check_timeout, iso_time
from holdfast.errors import UsageError
from holdfast.testing.clock import ManualClock


def test_the_system_clock_shows_the_system_s_clocks() -> None:
    before = time.monotonic(), time.time()
    now = SYSTEM_CLOCK.monotonic(), SYSTEM_CLOCK.wall()
    after = time.monotonic(), time.time()
    assert before[0] <= now[0] <= after[0]
    assert before[1] <= now[1] <= after[1]
    assert SYSTEM_CLOCK.boot() <= SYSTEM_CLOCK.boot()


def test_sleeping_takes_the_time_that_it_is_told() -> None:
    before = time.monotonic()
    SYSTEM_CLOCK.sleep(0.01)
    assert time.monotonic() - before >= 0.01


def test_a_moment_is_told_in_local_time_with_its_offset() -> None:
    text = iso_time(1.7e9)
    assert datetime.fromisoformat(text).timestamp() == 1.7e9
    assert text[-6] in "+-"
    assert text[-3] == ":"


@pytest.mark.parametrize(
    ("given", "checked"), [(None, None), (0, 0.0), (1, 1.0), (0.5, 0.5), (math.inf, None)]
)
def test_good_timeouts(given: float | None, checked: float | None) -> None:
    assert check_timeout(given) == checked


def test_a_timeout_that_no_clock_can_count_is_no_limit() -> None:
    assert check_timeout(1e300) is None
    assert check_timeout(10**400) is None


@pytest.mark.parametrize("given", [-1, -0.001, math.nan, -math.inf])
def test_a_negative_timeout_is_refused(given: float) -> None:
    with pytest.raises(UsageError, match=r"^timeout .*: must be zero or more seconds"):
        check_timeout(given)


@pytest.mark.parametrize("given", [True, "1", b"1", [1], 1j])
def test_a_timeout_is_a_number(given: object) -> None:
    with pytest.raises(UsageError, match=r"^grace .*: seconds as a number"):
        check_timeout(given, "grace")  # type: ignore[arg-type]


def test_a_deadline_counts_down_to_zero() -> None:
    clock = ManualClock()
    deadline = Deadline.after(2.0, clock)
    assert (deadline.remaining(), deadline.passed()) == (2.0, False)
    clock.advance(1.5)
    assert (deadline.remaining(), deadline.passed()) == (0.5, False)
    clock.advance(0.5)
    assert (deadline.remaining(), deadline.passed()) == (0.0, True)
    clock.advance(1.0)
    assert (deadline.remaining(), deadline.passed()) == (0.0, True)


def test_never_does_not_come() -> None:
    clock = ManualClock()
    never = Deadline.after(None, clock)
    clock.advance(1e9)
    assert (never.at, never.remaining(), never.passed()) == (None, None, False)


@pytest.mark.parametrize(("timeout", "expected"), [(5.0, 3.0), (1.0, 1.0), (None, 3.0)])
def test_the_sooner_of_two_deadlines(timeout: float | None, expected: float) -> None:
    clock = ManualClock()
    assert Deadline.after(timeout, clock).sooner(3.0).remaining() == expected


def test_without_a_clock_it_is_the_system_s() -> None:
    remaining = Deadline.after(1000.0).remaining()
    assert remaining is not None
    assert 0 < remaining <= 1000.0
