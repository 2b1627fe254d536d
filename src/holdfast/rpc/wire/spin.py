"""When to look for what is to come, again and again, before one sleeps until it is there.

To wake a thread up takes the system tens of microseconds: longer than a small call takes. A thread
that looks meanwhile is not asleep, but keeps a core busy, which the peer may need.

Guarantees
    EG-1  Nobody looks for who lets others wait: only after waits that were short is it tried. With
          a single core it never is: nothing comes while one looks.
    EG-2  Where looking comes to nothing it is tried ever more rarely, in the end after SKIPS_MAX
          short waits; where it pays, it is soon done every time.
"""

from __future__ import annotations

__all__ = ["SHORT_S", "SKIPS_MAX", "SPINS", "AdaptiveSpin"]

SPINS = 64
"""How often to look before one sleeps: for about 100 µs."""
SHORT_S = 200e-6
"""A wait that looking may have spared the waking up of."""
SKIPS_MAX = 4096
_AT_FIRST = 4


class AdaptiveSpin:
    """Of one who waits for one peer. `now` says whether to look before sleeping."""

    __slots__ = ("_cores", "_pause", "_to_go", "now")

    def __init__(self, cores: int) -> None:
        self.now = False
        self._cores = cores
        self._to_go = self._pause = _AT_FIRST

    def record_sleep(self, seconds: float) -> None:
        """Hear how long the wait was."""
        if seconds < SHORT_S and self._cores > 1:
            self._to_go -= 1
            self.now = self._to_go <= 0

    def record_spin(self, with_success: bool) -> None:
        """Hear whether it came while looking."""
        if with_success:
            self._pause = max(1, self._pause >> 1)
        else:
            self._pause = self._to_go = min(self._pause << 2, SKIPS_MAX)
            self.now = False
