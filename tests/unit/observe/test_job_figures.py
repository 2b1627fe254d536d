"""Failures by rank, and how long recovering took, from events."""

from __future__ import annotations

from typing import Any

from holdfast.ids import CauseId
from holdfast.observe.events import (
    StopRequested,
    WorkerFailed,
    WorkersRestarting,
    WorkersStarted,
    WorkersStopping,
)
from holdfast.observe.job_figures import JobFigures
from holdfast.observe.prometheus import render_prometheus


def base(at: float) -> dict[str, Any]:
    return {"cause": CauseId("a"), "at": at, "run": "a"}


def started(at: float) -> WorkersStarted:
    return WorkersStarted(**base(at), round=1, ranks=(0,), pids=(7,), world_size=1, restarts=0)


def failed(at: float, rank: int) -> WorkerFailed:
    return WorkerFailed(
        **base(at),
        round=1,
        rank=rank,
        local_rank=0,
        role="trainer",
        host="vm",
        pid=7,
        exit_code=1,
        reason="",
    )


def test_a_recovery_lasts_from_the_first_sign_to_the_next_start() -> None:
    figures = JobFigures("j", "vm")
    assert figures.last_recovery_s is None
    figures.emit(started(1.0))  # no recovery: nothing had gone wrong
    assert figures.last_recovery_s is None
    figures.emit(failed(10.0, 3))
    figures.emit(WorkersStopping(**base(10.5), round=1, signal="SIGTERM", grace_s=1.0, reason=""))
    figures.emit(WorkersRestarting(**base(11.0), round=1, failures=1, left=None, reason=""))
    figures.emit(started(12.0))
    assert figures.last_recovery_s == 2.0
    figures.emit(WorkersRestarting(**base(20.0), round=2, failures=1, left=None, reason=""))
    figures.emit(StopRequested(**base(20.1), by="me"))  # says nothing about workers
    figures.emit(started(20.25))
    figures.emit(failed(21.0, 3))
    figures.close()
    assert figures.last_recovery_s == 0.25
    text = render_prometheus(figures.snapshot())
    failures = 'holdfast_worker_failures_total{job="j",node="vm",rank="3",role="trainer"} 2.0\n'
    assert failures in text
    assert 'holdfast_recovery_seconds_bucket{job="j",node="vm",le="0.3"} 1\n' in text
    assert 'holdfast_recovery_seconds_bucket{job="j",node="vm",le="3.0"} 2\n' in text
    assert 'holdfast_recovery_seconds_sum{job="j",node="vm"} 2.25\n' in text
