"""Numbers that only the events of an agent tell: failures by rank, and how long recovering took.

A recovery begins with the first sign that the workers do not go on, a failure or that they are
stopped or restarted, and ends when workers have been started again.
"""

from __future__ import annotations

from holdfast.observe.events import (
    Event,
    WorkerFailed,
    WorkersRestarting,
    WorkersStarted,
    WorkersStopping,
)
from holdfast.observe.metrics import Metric, Metrics

__all__ = ["RECOVERY_SECONDS", "JobFigures"]

RECOVERY_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class JobFigures:
    """A sink that counts. The agent's thread tells it; any thread may take a snapshot.

    `job` and `node` are labels of all its metrics.
    """

    def __init__(self, job: str, node: str) -> None:
        self._labels = {"job": job, "node": node}
        self._metrics = Metrics()
        self._recovery = self._metrics.histogram(
            "holdfast_recovery_seconds",
            "From the first sign that the workers stop to their next start",
            RECOVERY_SECONDS,
            **self._labels,
        )
        self._since: float | None = None
        self.last_recovery_s: float | None = None
        """How long the last recovery took; None if there was none."""

    def emit(self, event: Event) -> None:
        match event:
            case WorkerFailed():
                self._metrics.counter(
                    "holdfast_worker_failures_total",
                    "Failures of the workers of this node",
                    **self._labels,
                    role=event.role,
                    rank=str(event.rank),
                ).add()
                self._trouble(event.at)
            case WorkersStopping() | WorkersRestarting():
                self._trouble(event.at)
            case WorkersStarted():
                if self._since is not None:
                    self.last_recovery_s = event.at - self._since
                    self._recovery.observe(self.last_recovery_s)
                    self._since = None
            case _:
                pass

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _trouble(self, at: float) -> None:
        if self._since is None:
            self._since = at

    def snapshot(self) -> tuple[Metric, ...]:
        """Return the numbers as they are now."""
        return self._metrics.snapshot()
