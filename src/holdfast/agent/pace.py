"""How fast the workers of a node make progress, and whether they stopped.

A worker makes progress when the step that it tells changes. One that never told a step makes
progress when it writes, or uses more than a hundredth of a processor.

Guarantees
    PA-1  Steps a second are those of the last WINDOW_S seconds, of samples that were taken.
    PA-2  A worker has stalled if it made no progress for `stall_after_s`, by samples that were
          taken at both ends: an agent that was stopped itself accuses no worker.
    PA-3  Once a worker has told a step, only steps count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from holdfast.records import dataclass

__all__ = ["Pace", "Paces", "Sample"]

WINDOW_S = 60.0
IDLE_SHARE = 0.01
_GAP_S = 30.0  # samples further apart say nothing of what was between them


@dataclass(frozen=True, slots=True)
class Sample:
    """What is seen of a worker: its step (-1: none told), bytes written, processor seconds."""

    step: int = -1
    written: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The step of a worker (-1: none told), and steps a second; None if not known yet."""

    step: int
    steps_a_second: float | None


class _OneWorker:
    """What is known of one worker."""

    def __init__(self, sample: Sample, now: float) -> None:
        self.mark, self.since = sample, now  # the last progress
        self.steps: deque[tuple[float, int]] = deque()

    def take(self, sample: Sample, now: float) -> None:
        if self._is_progress(sample, now):
            self.mark, self.since = sample, now
        if sample.step >= 0:
            if self.steps and sample.step < self.steps[-1][1]:
                self.steps.clear()  # it went back: a new epoch, or a checkpoint
            self.steps.append((now, sample.step))
            while now - self.steps[0][0] > WINDOW_S:
                self.steps.popleft()

    def _is_progress(self, sample: Sample, now: float) -> bool:
        if sample.step >= 0 or self.mark.step >= 0:
            return sample.step != self.mark.step
        busy_s = sample.cpu_s - self.mark.cpu_s
        return sample.written != self.mark.written or busy_s > IDLE_SHARE * (now - self.since)

    def pace(self) -> Pace:
        if not self.steps:
            return Pace(-1, None)
        (first_at, first), (last_at, last) = self.steps[0], self.steps[-1]
        rate = (last - first) / (last_at - first_at) if last_at > first_at else None
        return Pace(last, rate)


class Paces:
    """The workers of one attempt, by rank. Not for several threads."""

    def __init__(self) -> None:
        self._workers: dict[int, _OneWorker] = {}
        self._last_at: float | None = None

    def take(self, samples: Mapping[int, Sample], now: float) -> None:
        """Take what is seen of the workers that run."""
        if self._last_at is not None and now - self._last_at > _GAP_S:
            for worker in self._workers.values():  # this process was stopped (PA-2)
                worker.since = now
        self._last_at = now
        for gone in self._workers.keys() - samples.keys():
            del self._workers[gone]
        for rank, sample in samples.items():
            if rank not in self._workers:
                self._workers[rank] = _OneWorker(sample, now)
            self._workers[rank].take(sample, now)

    def paces(self) -> dict[int, Pace]:
        """Return how fast each worker is, by rank."""
        return {rank: worker.pace() for rank, worker in self._workers.items()}

    def stalled(self, stall_after_s: float, now: float) -> dict[int, float]:
        """Return the workers that stalled, by rank: for how many seconds; the longest first."""
        idle = {rank: now - worker.since for rank, worker in self._workers.items()}
        long = [pair for pair in idle.items() if pair[1] >= stall_after_s]
        return dict(sorted(long, key=lambda pair: (-pair[1], pair[0])))
