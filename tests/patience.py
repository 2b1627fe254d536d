"""More time for a slow machine, where it does not help what is broken."""

from __future__ import annotations

from collections.abc import Callable


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
