"""A clock that moves only when a test moves it."""

from __future__ import annotations

import threading

from holdfast.errors import UsageError

__all__ = ["ManualClock"]


class ManualClock:
    """A `Clock` under a test's control: time passes by `advance()` and by `sleep()` only.

    `monotonic` and `boot` show the same time, `wall` shows it plus `wall_offset`, which a test
    may change at will, since wall clocks jump. Safe to use from many threads; a thread that
    sleeps does not wait for another one: it moves the time itself and goes on.
    """

    def __init__(self, start: float = 1000.0, wall_offset: float = 1.7e9) -> None:
        self.wall_offset = wall_offset
        self._now = float(start)
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        with self._lock:
            return self._now

    def boot(self) -> float:
        return self.monotonic()

    def wall(self) -> float:
        return self.monotonic() + self.wall_offset

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> float:
        """Move the time ahead and return the new `monotonic()`; UsageError if it would go back."""
        if not seconds >= 0:
            raise UsageError(f"advance({seconds!r}): must be zero or more seconds")
        with self._lock:
            self._now += seconds
            return self._now
