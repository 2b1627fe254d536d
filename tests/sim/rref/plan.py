"""What a seed decides for simulated remote references: the workers, and all that goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.testing.faultplan import FaultPlan, draw_faults

__all__ = ["RRefPlan", "draw_plan"]

_SIZES = (2, 3, 3, 3, 4, 4, 5, 6, 8)  # most bugs need few workers


@dataclass(frozen=True, slots=True)
class RRefPlan:
    """All that a seed decides."""

    faults: FaultPlan
    workers: int
    every_s: float
    """How often a worker does something, on average."""
    targeted_crashes: frozenset[int]
    """The worker that passes on the nth gift of the run dies right after it."""
    remembered: int

    def __str__(self) -> str:
        return (
            f"{self.workers} workers, each does something every {self.every_s:.2f} s and "
            f"remembers {self.remembered}; givers die after "
            f"{sorted(self.targeted_crashes)}\n{self.faults}"
        )


def draw_plan(seed: int) -> RRefPlan:
    """Decide from the seed all that will go wrong."""
    rng = random.Random(f"rrefs {seed}")
    names = [f"w{number}" for number in range(rng.choice(_SIZES))]
    work_s = rng.uniform(3.0, 6.0)
    faults = draw_faults(rng, names, work_s)
    every_s = rng.choice((0.1, 0.2, 0.4))
    targeted_crashes = frozenset(rng.randint(1, 15) for _ in range(rng.choice((0, 1, 2))))
    return RRefPlan(faults, len(names), every_s, targeted_crashes, 1 << 16)
