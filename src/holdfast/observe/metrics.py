"""Numbers about a running process: counters, gauges, histograms.

    metrics = Metrics()
    performed = metrics.counter("holdfast_store_ops_total", "Operations performed", op="get")
    performed.add()

Asking again with the same name and labels gives the same object, so hot paths keep it. One
thread writes; any thread may take a snapshot, which then may be a step behind.

Every metric has a limit of `SERIES_MAX` combinations of labels. What comes beyond it is counted
under the label value "other": a label that a program fills with user ids must not fill memory.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum
from typing import TypeVar, cast

from holdfast.errors import UsageError
from holdfast.records import dataclass

__all__ = [
    "OTHER",
    "SECONDS",
    "SERIES_MAX",
    "Counter",
    "Gauge",
    "Histogram",
    "Labels",
    "Metric",
    "MetricKind",
    "Metrics",
    "Series",
]

SERIES_MAX = 100
OTHER = "other"

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper bounds for durations: from a round trip on one machine to a slow network's time-out."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")

Labels = tuple[tuple[str, str], ...]


class MetricKind(StrEnum):
    """The kinds of metrics, by Prometheus's names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1) -> None:
        """Add `amount`, which is not negative."""
        if amount < 0:
            raise UsageError(f"amount {amount!r}: a counter only grows; use a gauge")
        self.value += amount


class Gauge:
    """A number that goes up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Take this value."""
        self.value = value

    def add(self, amount: float = 1) -> None:
        """Go up by `amount`, or down if it is negative."""
        self.value += amount


class Histogram:
    """How many observations fell below each of some fixed bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise UsageError(f"bounds {bounds!r:.80}: at least one, each above the one before")
        self.bounds = tuple(bounds)
        # The last one counts what lies above every bound.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation; a value equal to a bound belongs below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


AnyMetric = Counter | Gauge | Histogram
M = TypeVar("M", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class Series:
    """One combination of labels and its numbers at the time of the snapshot.

    For a histogram `value` is the sum of all observations, and `counts` has one number for each
    of `bounds` and one for what lies above.
    """

    labels: Labels
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric and all its series, ordered by labels."""

    name: str
    kind: MetricKind
    description: str
    series: tuple[Series, ...]


@dataclass(slots=True)
class _Family:
    kind: MetricKind
    description: str
    bounds: tuple[float, ...] = ()
    label_names: tuple[str, ...] = ()
    series: dict[Labels, AnyMetric] = field(default_factory=dict)

    def agrees(self, other: _Family) -> bool:
        """Say whether both can be one metric."""
        return (self.kind, self.bounds, self.label_names) == (
            other.kind,
            other.bounds,
            other.label_names,
        )


class Metrics:
    """All metrics of a process."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def counter(self, name: str, description: str, /, **labels: str) -> Counter:
        """Return the counter of this name and labels, made at the first call."""
        return self._get(Counter(), _Family(MetricKind.COUNTER, description), name, labels)

    def gauge(self, name: str, description: str, /, **labels: str) -> Gauge:
        """Return the gauge of this name and labels, made at the first call."""
        return self._get(Gauge(), _Family(MetricKind.GAUGE, description), name, labels)

    def histogram(
        self, name: str, description: str, bounds: Sequence[float] = SECONDS, /, **labels: str
    ) -> Histogram:
        """Return the histogram of this name and labels, made at the first call."""
        new = Histogram(bounds)
        return self._get(new, _Family(MetricKind.HISTOGRAM, description, new.bounds), name, labels)

    def snapshot(self) -> tuple[Metric, ...]:
        """Return all numbers as they are now, ordered by name."""
        return tuple(
            Metric(
                name,
                family.kind,
                family.description,
                tuple(_freeze(labels, metric) for labels, metric in sorted(family.series.items())),
            )
            for name, family in sorted(self._families.items())
        )

    def _get(self, new: M, wanted: _Family, name: str, labels: dict[str, str]) -> M:
        ordered = tuple(sorted(labels.items()))
        wanted.label_names = tuple(sorted(labels))
        family = self._families.get(name)
        if family is None:
            for text in (name, *wanted.label_names):
                if not _NAME.fullmatch(text):
                    raise UsageError(f"metric {name!r:.80}: names are lower case, digits and '_'")
            family = self._families[name] = wanted
        elif not family.agrees(wanted):
            raise UsageError(
                f"metric {name!r}: is a {family.kind} with labels {family.label_names} elsewhere"
            )
        if ordered not in family.series and len(family.series) >= SERIES_MAX:
            ordered = tuple((key, OTHER) for key in family.label_names)
        return cast(M, family.series.setdefault(ordered, new))


def _freeze(labels: Labels, metric: AnyMetric) -> Series:
    if isinstance(metric, Histogram):
        return Series(labels, metric.total, metric.bounds, tuple(metric.counts))
    return Series(labels, metric.value)
