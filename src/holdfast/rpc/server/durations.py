"""Which functions are slow, by the durations of their last runs.

The thread that reads a request runs a quick function itself: that costs no hand-over. Before a slow
function, it hands its connection over, so that another thread reads the requests behind it.

Guarantees
    DU-1  A function is slow from its second run on if its first took SLOW_S; it is quick again when
          its average falls below half of that.
    DU-2  At most NAMES_MAX functions are remembered: the oldest one is forgotten.
"""

from __future__ import annotations

__all__ = ["NAMES_MAX", "SLOW_S", "Durations"]

SLOW_S = 0.0005
NAMES_MAX = 4096
_WEIGHT = 0.25


class Durations:
    """The averages of the slow functions of one worker, by name."""

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self._names_max = names_max
        self.slow: dict[str, float] = {}
        """The slow functions: a plain dictionary, since every call reads it."""

    def record(self, name: str, seconds: float) -> None:
        """Record the duration of a run. A quick function needs no record below SLOW_S."""
        before = self.slow.get(name)
        if before is None:
            if seconds >= SLOW_S:
                self.slow[name] = seconds
                if len(self.slow) > self._names_max:
                    self.slow.pop(next(iter(self.slow)), None)
            return
        average = before + _WEIGHT * (seconds - before)
        if average < SLOW_S / 2:
            self.slow.pop(name, None)
        else:
            self.slow[name] = average
