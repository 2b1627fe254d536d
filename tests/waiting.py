"""Waiting for a condition that no event announces; and more time for a slow machine."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import SYSTEM_CLOCK, Deadline

WITHIN_S = 60.0
"""How long `until` waits. Only a failure ever takes that long."""


def until(
    true: Callable[[], object], seen: Callable[[], object] = lambda: "", *, every_s: float = 0.002
) -> None:
    """Wait until a condition holds; fail after WITHIN_S, and show what `seen` returns.

    For what another thread or process does and does not announce. Where there is an event, a
    future, a queue or a pipe, wait for that instead.
    """
    assert holds_in_time(true, WITHIN_S, every_s=every_s), seen()


def holds_in_time(true: Callable[[], object], within_s: float, *, every_s: float = 0.002) -> bool:
    """Wait until a condition holds, so many seconds at most; say whether it does."""
    deadline = Deadline.after(within_s)
    while not true():
        if deadline.passed():
            return False
        SYSTEM_CLOCK.sleep(every_s)
    return True


def with_more_time(attempt: Callable[[float], object], first_s: float = 0.3) -> None:
    """Try something that ends when these seconds are over; if it fails, try with many more.

    For limits that pass whatever happens, when much has to be done before: on a fast machine they
    cost little, and on a slow one they still do not pass too early.
    """
    for seconds in (first_s, 10 * first_s):
        try:
            attempt(seconds)
        except Exception:  # too early, perhaps: the last attempt tells
            continue
        return
    attempt(40 * first_s)
