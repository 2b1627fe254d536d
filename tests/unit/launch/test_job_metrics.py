"""An agent's status as metrics with labels; and the dashboard in docs/ asks for no other ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from holdfast.launch.job_metrics import METRIC_NAMES, RANKS_MAX, job_metrics
from holdfast.observe.job_figures import JobFigures
from holdfast.observe.prometheus import render_prometheus

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana.json"
JOB = 'job="j",node="vm"'


def worker(rank: int, role: str = "trainer", *, running: bool = True) -> dict[str, Any]:
    return {"rank": rank, "role": role, "running": running}


def told(**changes: Any) -> dict[str, Any]:
    restarts = {"allowed": 3, "used": 1, "here": 0, "causes": []}
    return {
        "run": "j",
        "host": "vm",
        "name": "train.py",
        "state": "running",
        "started_at": 1000.5,
        "turned_s_ago": 0.5,
        "round": 2,
        "nodes": 2,
        "world_size": 4,
        "spares": 1,
        "lease_s": 7.5,
        "restarts": restarts | changes.pop("restarts", {}),
        "workers": [worker(0), worker(1, running=False), worker(2, "reader")],
        **changes,
    }


def lines(status: dict[str, Any]) -> list[str]:
    figures = JobFigures("j", "vm").snapshot()
    text = render_prometheus(job_metrics(status, "1.2", figures))
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_what_an_agent_tells_has_labels() -> None:
    found = lines(told())
    for line in (
        f"holdfast_round{{{JOB}}} 2.0",
        f"holdfast_world_size{{{JOB}}} 4.0",
        f"holdfast_spares{{{JOB}}} 1.0",
        f"holdfast_lease_left_seconds{{{JOB}}} 7.5",
        f'holdfast_agent_info{{{JOB},program="train.py",version="1.2"}} 1.0',
        f'holdfast_agent_state{{{JOB},state="running"}} 1.0',
        f'holdfast_agent_state{{{JOB},state="joining"}} 0.0',
        f'holdfast_workers{{{JOB},role="reader",state="running"}} 1.0',
        f'holdfast_workers{{{JOB},role="trainer",state="running"}} 1.0',
        f'holdfast_workers{{{JOB},role="trainer",state="ended"}} 1.0',
        f'holdfast_worker_up{{{JOB},rank="1",role="trainer"}} 0.0',
        f'holdfast_worker_up{{{JOB},rank="2",role="reader"}} 1.0',
        f"holdfast_restart_budget{{{JOB}}} 3.0",
        f"holdfast_restart_budget_used{{{JOB}}} 1.0",
        f"holdfast_restarts_total{{{JOB}}} 0.0",
        f"holdfast_recovery_seconds_count{{{JOB}}} 0",
    ):
        assert line in found


def test_what_is_not_known_is_left_out() -> None:
    found = lines(told(lease_s=None, workers=[]))
    unknown = ("lease", "workers", "worker_up", "restarts_by_cause")
    assert not [line for line in found if line.startswith(tuple(f"holdfast_{n}" for n in unknown))]


def test_restarts_are_counted_by_cause_and_those_without_a_name_too() -> None:
    causes = [["rank 1: ValueError", 2], ["other", 1]]
    found = lines(told(restarts={"here": 5, "causes": causes}))
    name = "holdfast_restarts_by_cause_total"
    assert f'{name}{{cause="rank 1: ValueError",{JOB}}} 2.0' in found
    assert f'{name}{{cause="other",{JOB}}} 3.0' in found
    assert f"holdfast_restarts_total{{{JOB}}} 5.0" in found


def test_the_number_of_series_has_a_limit() -> None:
    found = lines(told(workers=[worker(rank) for rank in range(RANKS_MAX + 1)]))
    assert sum(line.startswith("holdfast_worker_up") for line in found) == RANKS_MAX


def test_the_names_are_those_that_are_listed() -> None:
    status = told(restarts={"here": 1, "causes": [["a", 1]]})
    found = {one.name for one in job_metrics(status, "1", JobFigures("j", "vm").snapshot())}
    assert found | {"holdfast_worker_failures_total"} == METRIC_NAMES


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    board = json.loads(DASHBOARD.read_text())
    queries = [one["expr"] for panel in board["panels"] for one in panel["targets"]]
    queries += [one["query"] for one in board["templating"]["list"]]
    asked = {name for query in queries for name in re.findall(r"\bholdfast_\w+", query)}
    parts = re.compile(r"_(bucket|sum|count)$")
    # Of an agent's start only the moment is of interest, which no panel shows.
    missing = {"holdfast_agent_start_time_seconds"}
    assert {parts.sub("", name) for name in asked} == METRIC_NAMES - missing
