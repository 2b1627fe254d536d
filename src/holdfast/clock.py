"""The only file that reads a clock.

Everything else is given `now`, a `Clock`, or a `Deadline`. Time inside holdfast is monotonic;
the wall clock serves only for stamping what people read.
"""

from __future__ import annotations

import time
from typing import Protocol

from holdfast.errors import UsageError

__all__ = ["SYSTEM_CLOCK", "Clock", "Deadline", "SystemClock", "check_timeout", "iso_time"]

# Longer than any process lives, and still a number that every system call takes: a limit beyond
# it is none.
_TIMEOUT_MAX_S = 1e9
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never goes back."""
        ...

    def boot(self) -> float:
        """Return seconds since the machine booted: one clock for all its processes."""
        ...

    def wall(self) -> float:
        """Return seconds since 1970, for people; may jump."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for this long."""
        ...


class SystemClock:
    """The clocks of this machine."""

    monotonic = staticmethod(time.monotonic)  # the very function: it is asked in every call

    def boot(self) -> float:
        return time.clock_gettime(_BOOT_CLOCK)

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


def iso_time(wall: float) -> str:
    """Return a moment of the wall clock as people read it: ISO 8601, local, with its offset."""
    text = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(wall))
    return f"{text[:-2]}:{text[-2:]}"


def check_timeout(timeout: float | None, what: str = "timeout") -> float | None:
    """Return `timeout` if it is one: seconds, zero or more, or None for no limit."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise UsageError(f"{what} {timeout!r}: seconds as a number, or None for no limit")
    if not timeout >= 0:  # not a number is neither more nor less
        raise UsageError(f"{what} {timeout!r}: must be zero or more seconds, or None for no limit")
    return float(timeout) if timeout <= _TIMEOUT_MAX_S else None


class Deadline:
    """An absolute moment on a monotonic clock, or never."""

    __slots__ = ("_clock", "at")

    def __init__(self, at: float | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.at = at
        self._clock = clock

    @classmethod
    def after(cls, timeout: float | None, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Make the deadline that lies `timeout` seconds ahead; None means never."""
        if timeout is None:
            return cls(None, clock)
        return cls(clock.monotonic() + timeout, clock)

    def remaining(self) -> float | None:
        """Return the seconds left, 0.0 when passed, None if there is no limit."""
        if self.at is None:
            return None
        return max(0.0, self.at - self._clock.monotonic())

    def passed(self) -> bool:
        """Say whether the moment has come."""
        return self.at is not None and self._clock.monotonic() >= self.at

    def sooner(self, seconds: float) -> Deadline:
        """Return this deadline, or the one `seconds` ahead if that comes first."""
        at = self._clock.monotonic() + seconds
        return Deadline(at if self.at is None else min(self.at, at), self._clock)
