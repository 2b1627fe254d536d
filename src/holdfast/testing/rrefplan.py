"""What a seed decides for simulated remote references: the workers, and all that goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.testing.faultplan import (
    Crash,
    FaultPlan,
    Incident,
    draw_partition,
    draw_pause,
    draw_rates,
)

__all__ = ["RRefPlan", "draw_plan"]

_SIZES = (2, 3, 3, 3, 4, 4, 5, 6, 8)  # most bugs need few workers


@dataclass(frozen=True, slots=True)
class RRefPlan:
    """All that a seed decides."""

    faults: FaultPlan
    workers: int
    every_s: float
    """How often a worker does something, on average."""
    ambushes: frozenset[int]
    """Who passes on the nth gift of the run dies right after it."""
    remembered: int

    def __str__(self) -> str:
        return (
            f"{self.workers} workers, each does something every {self.every_s:.2f} s and "
            f"remembers {self.remembered}; givers die after {sorted(self.ambushes)}\n{self.faults}"
        )


def draw_plan(seed: int) -> RRefPlan:
    """Decide from the seed all that will go wrong."""
    rng = random.Random(f"rrefs {seed}")
    names = [f"w{number}" for number in range(rng.choice(_SIZES))]
    work_s = rng.uniform(3.0, 6.0)
    pairs = [(one, other) for one in names for other in names if one != other]
    incidents: list[Incident] = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        incidents.append(draw_partition(rng, pairs, work_s, 3.0))
    for _ in range(rng.choice((0, 0, 1, 2))):
        incidents.append(draw_pause(rng, names, work_s, 2.0))
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        at = rng.uniform(0.3, work_s)
        back = rng.choice((None, at + rng.uniform(0.1, 3.0)))
        incidents.append(Crash(at, rng.choice(names), back, rng.random() < 0.5))
    low = rng.uniform(0.0002, 0.01)
    faults = FaultPlan(
        latency_s=(low, low * rng.uniform(1.5, 30.0)),
        delay_s=rng.choice((0.05, 0.5, 3.0)),
        rates=draw_rates(rng),
        incidents=tuple(incidents),
        calm_at=work_s,
    )
    every_s = rng.choice((0.1, 0.2, 0.4))
    ambushes = frozenset(rng.randint(1, 15) for _ in range(rng.choice((0, 1, 2))))
    return RRefPlan(faults, len(names), every_s, ambushes, 1 << 16)
