"""How often the workers of a node were started again, and why: a value that does not grow."""

from __future__ import annotations

from dataclasses import replace

from holdfast.records import dataclass

__all__ = ["CAUSES_MAX", "Restarts"]

CAUSES_MAX = 8
"""So many causes have names; a job of many weeks may have more."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """The restarts so far: their number, and how often each cause came, in the order of the first.

    `str` says it as the last line of a job does: "3 restarts (rank 3: ValueError 2 times, …)".
    """

    count: int = 0
    causes: tuple[tuple[str, int], ...] = ()

    def plus(self, cause: str) -> Restarts:
        """Return these and one more."""
        times = dict(self.causes)
        if cause in times or len(times) < CAUSES_MAX:
            times[cause] = times.get(cause, 0) + 1
        return replace(self, count=self.count + 1, causes=tuple(times.items()))

    def __str__(self) -> str:
        if not self.count:
            return "no restart"
        named = [cause if times == 1 else f"{cause} {times} times" for cause, times in self.causes]
        if more := self.count - sum(times for _, times in self.causes):
            named.append(f"{more} more")
        noun = "restart" if self.count == 1 else "restarts"
        return f"{self.count} {noun} ({', '.join(named)})"
