"""What an agent tells of itself, as metrics with labels: the job, the node, the role, the rank.

The node is its host's name, which stays the same over rounds. Two agents of one host differ in
their address, which Prometheus adds as `instance`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.agent.terms import State
from holdfast.observe.metrics import OTHER, Metric, MetricKind, Series

__all__ = ["METRIC_NAMES", "RANKS_MAX", "job_metrics"]

RANKS_MAX = 1024
"""So many workers of one node have a series of their own."""

_STARTING = "starting"
_FROM_EVENTS = ("holdfast_recovery_seconds", "holdfast_worker_failures_total")

_GAUGES = {
    "holdfast_round": ("The round that this node is in, 0 outside of one", "round"),
    "holdfast_nodes": ("Nodes of the round", "nodes"),
    "holdfast_world_size": ("Workers of all nodes of the round", "world_size"),
    "holdfast_spares": ("Nodes that wait for a place", "spares"),
    "holdfast_agent_idle_seconds": ("Since the agent's loop last turned", "turned_s_ago"),
    "holdfast_agent_start_time_seconds": ("When the agent was started, since 1970", "started_at"),
    "holdfast_lease_left_seconds": ("Until the workers are killed if no renewal comes", "lease_s"),
}
_TEXTS = {
    "holdfast_agent_info": "The agent: its version and its program",
    "holdfast_agent_state": "1 for what the agent does, 0 for everything else",
    "holdfast_workers": "Workers of this node by state",
    "holdfast_worker_up": "Whether a worker runs",
    "holdfast_restart_budget": "Failures of the job that are forgiven",
    "holdfast_restart_budget_used": "Failures of the job that count now",
    "holdfast_restarts_total": "How often this node started its workers again",
    "holdfast_restarts_by_cause_total": "The same by cause",
}
METRIC_NAMES = frozenset({*_GAUGES, *_TEXTS, *_FROM_EVENTS})
"""Every metric that there is, those of observe/job_figures.py included."""


def job_metrics(
    told: Mapping[str, Any], version: str, figures: Iterable[Metric]
) -> tuple[Metric, ...]:
    """Return the metrics of one agent: of its status, as launch/steering.py tells it, and others.

    `figures` are those that observe/job_figures.py counts.
    """
    base = {"job": told["run"], "node": told["host"]}
    found = [
        _metric(name, text, [_series(float(told[key]), base)])
        for name, (text, key) in _GAUGES.items()
        if told.get(key) is not None
    ]
    states = [_STARTING, *State]
    found += [
        _own("holdfast_agent_info", [_series(1, base, version=version, program=told["name"])]),
        _own(
            "holdfast_agent_state",
            [_series(float(told["state"] == one), base, state=str(one)) for one in states],
        ),
        *_workers(told, base),
        *_restarts(told["restarts"], base),
        *figures,
    ]
    return tuple(sorted((one for one in found if one.series), key=lambda one: one.name))


def _workers(told: Mapping[str, Any], base: dict[str, str]) -> list[Metric]:
    workers = told["workers"]
    count = Counter(
        (one["role"], state) for one in workers for state in ("running", "ended") if _is(one, state)
    )
    roles = sorted({one["role"] for one in workers})
    by_state = [
        _series(count[role, state], base, role=role, state=state)
        for role in roles
        for state in ("running", "ended")
    ]
    up = [
        _series(float(one["running"]), base, role=one["role"], rank=str(one["rank"]))
        for one in workers[:RANKS_MAX]
    ]
    return [_own("holdfast_workers", by_state), _own("holdfast_worker_up", up)]


def _is(worker: Mapping[str, Any], state: str) -> bool:
    return bool(worker["running"]) == (state == "running")


def _restarts(restarts: Mapping[str, Any], base: dict[str, str]) -> list[Metric]:
    causes = {str(cause): times for cause, times in restarts["causes"]}
    if unnamed := restarts["here"] - sum(causes.values()):
        causes[OTHER] = causes.get(OTHER, 0) + unnamed
    by_cause = [_series(times, base, cause=cause) for cause, times in causes.items()]
    counter = MetricKind.COUNTER
    return [
        _own("holdfast_restart_budget", [_series(restarts["allowed"], base)]),
        _own("holdfast_restart_budget_used", [_series(restarts["used"], base)]),
        _own("holdfast_restarts_total", [_series(restarts["here"], base)], counter),
        _own("holdfast_restarts_by_cause_total", by_cause, counter),
    ]


def _own(name: str, series: list[Series], kind: MetricKind = MetricKind.GAUGE) -> Metric:
    return _metric(name, _TEXTS[name], series, kind)


def _metric(
    name: str, text: str, series: list[Series], kind: MetricKind = MetricKind.GAUGE
) -> Metric:
    return Metric(name, kind, text, tuple(series))


def _series(value: float, base: dict[str, str], **labels: str) -> Series:
    return Series(tuple(sorted((base | labels).items())), value)
