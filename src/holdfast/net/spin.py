"""When to spin before sleeping: a thread may poll its socket for a moment before it blocks.

The system takes tens of microseconds to wake a thread: longer than a small call takes. A thread
that spins need not be woken, but keeps a core busy, which the peer may need.

Guarantees
    EG-1  A thread spins only if recent waits were short. With a single core it never spins: nothing
          can arrive while it does.
    EG-2  Where spinning fails it is tried ever more rarely, in the end after SKIPS_MAX short waits;
          where it succeeds, it is soon done every time.
"""

from __future__ import annotations

__all__ = ["SHORT_S", "SKIPS_MAX", "SPINS", "AdaptiveSpin"]

SPINS = 64
"""How often to poll before sleeping: for about 100 µs."""
SHORT_S = 200e-6
"""A wait shorter than this is short: spinning might have avoided the sleep."""
SKIPS_MAX = 4096
_AT_FIRST = 4


class AdaptiveSpin:
    """The state of one thread that waits for one peer. `now` says whether to spin first."""

    __slots__ = ("_cores", "_pause", "_to_go", "now")

    def __init__(self, cores: int) -> None:
        self.now = False
        self._cores = cores
        self._to_go = self._pause = _AT_FIRST

    def record_sleep(self, seconds: float) -> None:
        """Record how long a sleep lasted."""
        if seconds < SHORT_S and self._cores > 1:
            self._to_go -= 1
            self.now = self._to_go <= 0

    def record_spin(self, with_success: bool) -> None:
        """Record whether something arrived while spinning."""
        if with_success:
            self._pause = max(1, self._pause >> 1)
        else:
            self._pause = self._to_go = min(self._pause << 2, SKIPS_MAX)
            self.now = False
