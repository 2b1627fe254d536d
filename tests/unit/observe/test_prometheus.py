"""The text format is what Prometheus reads."""

from __future__ import annotations

from holdfast.observe.metrics import Metrics
from holdfast.observe.prometheus import render_prometheus


def test_nothing_is_nothing() -> None:
    assert render_prometheus(Metrics().snapshot()) == ""


def test_counters_gauges_and_histograms() -> None:
    metrics = Metrics()
    metrics.counter("ops_total", "Operations", op="get", store="a").add(3)
    metrics.counter("ops_total", "Operations", op="set", store="a").add()
    metrics.gauge("clients", "Clients now").set(-2)
    waited = metrics.histogram("wait_seconds", "Waited", (0.1, 1.0), op="get")
    for value in (0.05, 0.5, 0.5, 7.0):
        waited.observe(value)
    assert render_prometheus(metrics.snapshot()).splitlines() == [
        "# HELP clients Clients now",
        "# TYPE clients gauge",
        "clients -2.0",
        "# HELP ops_total Operations",
        "# TYPE ops_total counter",
        'ops_total{op="get",store="a"} 3.0',
        'ops_total{op="set",store="a"} 1.0',
        "# HELP wait_seconds Waited",
        "# TYPE wait_seconds histogram",
        'wait_seconds_bucket{op="get",le="0.1"} 1',
        'wait_seconds_bucket{op="get",le="1.0"} 3',
        'wait_seconds_bucket{op="get",le="+Inf"} 4',
        'wait_seconds_sum{op="get"} 8.05',
        'wait_seconds_count{op="get"} 4',
    ]


def test_label_values_and_descriptions_are_escaped() -> None:
    metrics = Metrics()
    metrics.gauge("g", 'a "b"\n\\', key='a "b"\n\\').set(1)
    assert render_prometheus(metrics.snapshot()).splitlines() == [
        r'# HELP g a "b"\n\\',
        "# TYPE g gauge",
        r'g{key="a \"b\"\n\\"} 1.0',
    ]
