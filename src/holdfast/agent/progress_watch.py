"""Watches how the workers of an agent make progress: samples, paces, stalls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict

from holdfast.agent.attempt import Attempt
from holdfast.agent.pace import Pace, Paces
from holdfast.agent.rules import STALL
from holdfast.agent.stalls import report_stall
from holdfast.clock import Clock
from holdfast.process.outcome.failure import Failure
from holdfast.process.spec import Exit

__all__ = ["SAMPLE_EVERY_S", "ProgressWatch"]

SAMPLE_EVERY_S = 5.0
STALL_SAMPLE_EVERY_S = 1.0
STALLED_CODE = 75
"""What a job exits with that ends by a stall: timed out."""
_PARTS = 10  # so many samples at least in the time after which a worker counts as stalled

_log = logging.getLogger("holdfast.agent")


class ProgressWatch:
    """Watches the attempts of one agent.

    `stalled` is told of a stall, on another thread, which `start` gives.
    """

    def __init__(
        self,
        host: str,
        stall_after_s: float | None,
        *,
        start: Callable[[Callable[[], None]], None],
        stalled: Callable[[Attempt, Failure], None],
        clock: Clock,
    ) -> None:
        self._host = host
        self._stall_after_s = stall_after_s
        self._start = start
        self._stalled = stalled
        self._clock = clock
        self._attempt: Attempt | None = None
        self._paces = Paces()
        self._next_at = 0.0
        self._accused = False
        self._shown: dict[int, Pace] = {}
        self.every_s = SAMPLE_EVERY_S
        if stall_after_s is not None:
            self.every_s = min(STALL_SAMPLE_EVERY_S, stall_after_s / _PARTS)
        """How often to look."""

    def paces(self) -> dict[int, Pace]:
        """Return how fast the workers are, by rank, as last seen. From any thread."""
        return self._shown

    def look(self, attempt: Attempt | None, *, runs: bool) -> None:
        """Take a sample if one is due; `runs` says whether the attempt is at work."""
        if attempt is not self._attempt:
            self._attempt, self._paces, self._shown = attempt, Paces(), {}
            self._next_at, self._accused = 0.0, False
        now = self._clock.monotonic()
        if attempt is None or not runs or now < self._next_at:
            return
        self._next_at = now + self.every_s
        self._paces.take(attempt.samples(), now)
        self._shown = self._paces.paces()
        if self._stall_after_s is None or self._accused:
            return
        if idle := self._paces.stalled(self._stall_after_s, now):
            self._accused = True
            self._start(lambda: self._accuse(attempt, idle))

    def _accuse(self, attempt: Attempt, idle: dict[int, float]) -> None:
        """Find out where all workers are, and report the stall; blocks for a second."""
        stacks = attempt.stacks(None)
        pids = {one.rank: one.pid for one in stacks}
        told = report_stall(idle, [asdict(one) for one in stacks], self._stall_after_s or 0.0)
        local_rank, role = attempt.place_of(told.rank)
        _log.warning("rank %d stalled: %s\n%s", told.rank, told.message, told.stack)
        failure = Failure(
            rank=told.rank,
            local_rank=local_rank,
            role=role,
            host=self._host,
            pid=pids.get(told.rank, 0),
            exit=Exit(STALLED_CODE),
            at=self._clock.wall(),
            message=told.message,
            stack=told.stack,
            kind=STALL,
            step=self._shown[told.rank].step if told.rank in self._shown else -1,
        )
        self._stalled(attempt, failure)
