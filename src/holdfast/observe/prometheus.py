"""Metrics in Prometheus's text format, version 0.0.4.

Written by hand: it is forty lines, and a dependency would be imported by every agent. See
docs/decisions/004-metrics-text-by-hand.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from holdfast.observe.metrics import Labels, Metric, MetricKind, Series

__all__ = ["CONTENT_TYPE", "render_prometheus"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_prometheus(snapshot: Iterable[Metric]) -> str:
    """Return a snapshot as the text that Prometheus scrapes."""
    return "".join(f"{line}\n" for metric in snapshot for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    description = metric.description.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {metric.name} {description}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for series in metric.series:
        if metric.kind is MetricKind.HISTOGRAM:
            yield from _histogram(metric.name, series)
        else:
            yield f"{metric.name}{_braces(series.labels)} {_number(series.value)}"


def _histogram(name: str, series: Series) -> Iterator[str]:
    bounds = [*map(_number, series.bounds), "+Inf"]
    for bound, count in zip(bounds, accumulate(series.counts), strict=True):
        yield f"{name}_bucket{_braces((*series.labels, ('le', bound)))} {count}"
    yield f"{name}_sum{_braces(series.labels)} {_number(series.value)}"
    yield f"{name}_count{_braces(series.labels)} {sum(series.counts)}"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escape(value)}"' for key, value in labels) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return repr(float(value))
