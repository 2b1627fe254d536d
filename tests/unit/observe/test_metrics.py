"""Metrics count, in bounded memory, and a name means one thing."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.observe.metrics import (
    OTHER,
    SERIES_MAX,
    Counter,
    Gauge,
    Histogram,
    Metric,
    MetricKind,
    Metrics,
    Series,
)


def test_a_counter_only_grows() -> None:
    counter = Counter()
    counter.add()
    counter.add(2)
    counter.add(0)
    with pytest.raises(UsageError, match="only grows"):
        counter.add(-1)
    assert counter.value == 3


def test_a_gauge_goes_both_ways() -> None:
    gauge = Gauge()
    gauge.add(5)
    gauge.add(-7)
    assert gauge.value == -2
    gauge.set(10)
    assert gauge.value == 10


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 104.0


@pytest.mark.parametrize("bounds", [(), (2.0, 1.0), (1.0, 1.0)])
def test_bounds_must_rise(bounds: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="each above the one before"):
        Histogram(bounds)


def test_the_same_name_and_labels_are_the_same_object() -> None:
    metrics = Metrics()
    assert metrics.counter("a", "A", x="1", y="2") is metrics.counter("a", "A", y="2", x="1")
    assert metrics.counter("a", "A", x="1", y="3") is not metrics.counter("a", "A", x="1", y="2")


def test_a_label_may_be_called_name() -> None:
    assert Metrics().gauge("g", "G", name="n", description="d").value == 0


def test_the_snapshot_is_ordered_and_does_not_move() -> None:
    metrics = Metrics()
    metrics.gauge("b", "B").set(1)
    metrics.counter("a", "A", op="set").add()
    metrics.counter("a", "A", op="get").add(2)
    metrics.histogram("c", "C", (1.0,)).observe(3.0)
    before = metrics.snapshot()
    metrics.counter("a", "A", op="get").add()
    metrics.histogram("c", "C", (1.0,)).observe(0.0)
    assert before == (
        Metric(
            "a",
            MetricKind.COUNTER,
            "A",
            (Series((("op", "get"),), 2.0), Series((("op", "set"),), 1.0)),
        ),
        Metric("b", MetricKind.GAUGE, "B", (Series((), 1.0),)),
        Metric("c", MetricKind.HISTOGRAM, "C", (Series((), 3.0, (1.0,), (0, 1)),)),
    )


def test_a_name_means_one_thing() -> None:
    metrics = Metrics()
    metrics.counter("a", "A", op="get")
    metrics.histogram("h", "H", (1.0,))
    with pytest.raises(UsageError, match=r"'a': is a counter with labels \('op',\)"):
        metrics.gauge("a", "A", op="get")
    with pytest.raises(UsageError, match="elsewhere"):
        metrics.counter("a", "A", other="get")
    with pytest.raises(UsageError, match="elsewhere"):
        metrics.histogram("h", "H", (2.0,))


@pytest.mark.parametrize("name", ["", "A", "1a", "a-b", "a b", "a\n"])
def test_names_are_narrow(name: str) -> None:
    with pytest.raises(UsageError, match="names are lower case"):
        Metrics().counter(name, "")
    with pytest.raises(UsageError, match="names are lower case"):
        Metrics().counter("fine", "", **{name: "x"})


def test_a_refused_metric_leaves_nothing() -> None:
    metrics = Metrics()
    with pytest.raises(UsageError):
        metrics.counter("a", "A", B="x")
    assert metrics.snapshot() == ()


def test_beyond_the_limit_everything_is_other() -> None:
    metrics = Metrics()
    for n in range(SERIES_MAX):
        metrics.counter("a", "A", user=f"{n:03}").add()
    for n in range(SERIES_MAX, SERIES_MAX + 50):
        metrics.counter("a", "A", user=f"{n:03}").add()
    metrics.counter("a", "A", user="000").add()
    (metric,) = metrics.snapshot()
    assert len(metric.series) == SERIES_MAX + 1
    counts = {series.labels[0][1]: series.value for series in metric.series}
    assert counts[OTHER] == 50
    assert counts["000"] == 2
