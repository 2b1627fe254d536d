"""What will go wrong in a simulated run, as data that can be drawn from a seed and printed.

What can go wrong (`Fault`):
    drop       a frame is lost, and with it all that follows in that direction, and soon in the
               other: the link is silent from then on, as when a router forgets it
    reset      the link breaks; what was under way is lost, and each side learns of it
    delay      a frame, and all behind it, is late
    duplicate  a frame arrives once more, later on the same link    (only where the protocol
    reorder    a frame is overtaken by later ones of its link        promises to bear it)
    partition  between two hosts nothing passes, in both directions or in one; when it ends, what
               was sent meanwhile arrives after all, or the links break
    pause      a process stops for a while, perhaps for longer than its leases live
    crash      a process dies: its links break, or, if its machine died too, fall silent
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TypeAlias

__all__ = [
    "Break",
    "Crash",
    "Fault",
    "FaultPlan",
    "Incident",
    "Partition",
    "Pause",
    "Rates",
    "draw_faults",
    "draw_partition",
    "draw_pause",
    "draw_rates",
]


class Fault(StrEnum):
    """What can go wrong; the module's docstring says what each means."""

    DROP = "drop"
    RESET = "reset"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    PARTITION = "partition"
    ONE_WAY = "one-way partition"
    PAUSE = "pause"
    CRASH = "crash"
    SILENT_CRASH = "silent crash"


@dataclass(frozen=True, slots=True)
class Rates:
    """For each frame, how likely it is struck by a fault. They must not add up to more than 1."""

    drop: float = 0.0
    reset: float = 0.0
    delay: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0


@dataclass(frozen=True, slots=True)
class Partition:
    """From `at` to `until` nothing passes from `source` to `target`, nor back unless `one_way`.

    If `breaks`, the links on which something was held up break at the end.
    """

    at: float
    until: float
    source: str
    target: str
    one_way: bool = False
    breaks: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """From `at` to `until` the process does nothing; what arrives waits for it."""

    at: float
    until: float
    host: str


@dataclass(frozen=True, slots=True)
class Crash:
    """At `at` the process dies; a new one starts at `back`, if that is not None.

    If `silent`, its machine dies with it, and no other process is told.
    """

    at: float
    host: str
    back: float | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Break:
    """At `at` every link of the host breaks."""

    at: float
    host: str


Incident: TypeAlias = Partition | Pause | Crash | Break


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Everything that will go wrong in a run. After `calm_at` no frame is struck any more."""

    latency_s: tuple[float, float] = (0.0005, 0.005)
    delay_s: float = 1.0
    rates: Rates = Rates()
    incidents: tuple[Incident, ...] = ()
    calm_at: float = float("inf")

    def __str__(self) -> str:
        rates = [f"{one.name} {getattr(self.rates, one.name):.4f}" for one in fields(Rates)]
        low, high = self.latency_s
        lines = [
            f"latency {1000 * low:.2f} to {1000 * high:.2f} ms, delays up to {self.delay_s:.2f} s",
            f"calm at {self.calm_at:.1f} s",
            "rates: " + ", ".join(rates),
            *map(str, self.incidents),
        ]
        return "\n".join(lines)


# Drawing. Each kind of fault is left out of about half of the runs: a mix of everything hides
# what a few kinds do together.

_RATES_MAX = Rates(drop=0.02, reset=0.03, delay=0.15, duplicate=0.15, reorder=0.15)


def draw_rates(rng: random.Random) -> Rates:
    """Draw how likely each fault strikes a frame."""
    return Rates(
        **{
            one.name: rng.choice((0.0, rng.random())) * getattr(_RATES_MAX, one.name)
            for one in fields(Rates)
        }
    )


def draw_partition(
    rng: random.Random, pairs: Sequence[tuple[str, str]], until: float, longest_s: float
) -> Partition:
    """Draw a partition between one of these pairs that is over by `until`."""
    source, target = rng.choice(pairs)
    if rng.random() < 0.5:
        source, target = target, source
    start, end = _draw_span(rng, until, longest_s)
    return Partition(start, end, source, target, rng.random() < 0.5, rng.random() < 0.5)


def draw_pause(rng: random.Random, hosts: Sequence[str], until: float, longest_s: float) -> Pause:
    """Draw a pause of one of these hosts that is over by `until`."""
    start, end = _draw_span(rng, until, longest_s)
    return Pause(start, end, rng.choice(hosts))


def draw_faults(rng: random.Random, names: Sequence[str], work_s: float) -> FaultPlan:
    """Draw all that goes wrong between workers of these names, until `work_s`."""
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
    return FaultPlan(
        latency_s=(low, low * rng.uniform(1.5, 30.0)),
        delay_s=rng.choice((0.05, 0.5, 3.0)),
        rates=draw_rates(rng),
        incidents=tuple(incidents),
        calm_at=work_s,
    )


def _draw_span(rng: random.Random, until: float, longest_s: float) -> tuple[float, float]:
    # Squared, so that short ones are more common than long ones.
    length = min(longest_s, until) * rng.random() ** 2
    start = rng.uniform(0.0, until - length)
    return start, start + length
