"""Tells what the agent does: events for people and machines, numbers for dashboards."""

from __future__ import annotations

from signal import Signals
from typing import TypedDict

from holdfast.agent.attempt import Membership
from holdfast.agent.outcome import Ending, Outcome
from holdfast.clock import Clock
from holdfast.ids import CauseId
from holdfast.observe.events import (
    AgentSignalled,
    Event,
    JobEnded,
    JobFailed,
    StopRequested,
    WorkerFailed,
    WorkersFinished,
    WorkersRestarting,
    WorkersStarted,
    WorkersStopping,
)
from holdfast.observe.metrics import Metrics
from holdfast.observe.sinks import Sink
from holdfast.process.outcome.failure import Failure

__all__ = ["Narrator"]


class _Base(TypedDict):
    cause: CauseId
    at: float
    run: str


class Narrator:
    """Turns what happens to one agent into events and numbers. One thread uses it."""

    def __init__(self, run_id: str, sink: Sink, metrics: Metrics, clock: Clock) -> None:
        self._run = run_id
        self._sink = sink
        self._clock = clock
        self._round = 0
        self._ranks: tuple[int, ...] = ()
        self._failures = metrics.counter(
            "holdfast_worker_failures_total", "Workers of this node that failed"
        )
        self._restarts = metrics.counter(
            "holdfast_restarts_total", "How often this node asked for another round"
        )
        self._rounds = metrics.gauge("holdfast_round", "The round that this node is in")
        self._workers = metrics.gauge("holdfast_workers", "Workers of this node that were started")

    def starting(self, membership: Membership) -> None:
        """Know the round that all further events belong to; they may come before `started`."""
        self._round = membership.here.number
        self._ranks = tuple(one.rank for one in membership.ranks())
        self._rounds.set(self._round)

    def started(self, membership: Membership, pids: dict[int, int]) -> None:
        """Tell that the workers were started, as these processes by local rank."""
        here, ranks = membership.here, membership.ranks()
        self._workers.set(len(ranks))
        self._emit(
            WorkersStarted(
                **self._base(),
                round=here.number,
                ranks=self._ranks,
                pids=tuple(pids[one.local_rank] for one in ranks),
                world_size=ranks[0].world_size,
                restarts=here.failures,
            )
        )

    def failed(self, failure: Failure) -> None:
        """Tell that a worker has failed."""
        self._failures.add()
        self._emit(
            WorkerFailed(
                **self._base(),
                round=self._round,
                rank=failure.rank,
                local_rank=failure.local_rank,
                role=failure.role,
                host=failure.host,
                pid=failure.pid,
                exit_code=failure.exit.code,
                reason=failure.message,
            )
        )

    def stopping(self, number: Signals, grace_s: float, why: str) -> None:
        """Tell that the workers are told to end."""
        self._emit(
            WorkersStopping(
                **self._base(), round=self._round, signal=number.name, grace_s=grace_s, reason=why
            )
        )

    def finished(self) -> None:
        """Tell that the workers are done."""
        self._emit(WorkersFinished(**self._base(), round=self._round, ranks=self._ranks))

    def restarting(self, why: str, failures: int) -> None:
        """Tell that another round is asked for."""
        self._restarts.add()
        self._workers.set(0)
        self._emit(
            WorkersRestarting(
                **self._base(), round=self._round, failures=failures, left=None, reason=why
            )
        )

    def signalled(self, number: Signals) -> None:
        """Tell that a signal came."""
        self._emit(AgentSignalled(**self._base(), signal=number.name))

    def stop_asked(self, by: str) -> None:
        """Tell that a user stops the job."""
        self._emit(StopRequested(**self._base(), by=by))

    def ended(self, outcome: Outcome) -> None:
        """Tell how it ended."""
        self._workers.set(0)
        bad = outcome.ending in (Ending.FAILED, Ending.BROKEN)
        kind = JobFailed if bad else JobEnded
        self._emit(kind(**self._base(), ending=outcome.ending, reason=outcome.reason))

    def _base(self) -> _Base:
        return {"cause": CauseId(self._run), "at": self._clock.monotonic(), "run": self._run}

    def _emit(self, event: Event) -> None:
        self._sink.emit(event)
