"""Samples of workers, their paces, and a stall that is reported once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from holdfast.agent.attempt import Attempt
from holdfast.agent.pace import Pace, Sample
from holdfast.agent.progress_watch import SAMPLE_EVERY_S, ProgressWatch
from holdfast.process.outcome.failure import Failure
from holdfast.process.outcome.stacks import WorkerStack
from holdfast.process.spec import Exit
from holdfast.testing.clock import ManualClock


class PlayedAttempt:
    """Workers whose steps the test says."""

    def __init__(self) -> None:
        self.steps = {4: 0, 5: 0}
        self.sampled = 0

    def samples(self) -> dict[int, Sample]:
        self.sampled += 1
        return {rank: Sample(step) for rank, step in self.steps.items()}

    def stacks(self, ranks: None) -> list[WorkerStack]:
        return [WorkerStack(rank=rank, pid=rank + 100, state="sleeping") for rank in self.steps]

    def place_of(self, rank: int) -> tuple[int, str]:
        return rank - 4, "trainer"


class Watched:
    """A watch over a played attempt."""

    def __init__(self, stall_after_s: float | None) -> None:
        self.clock = ManualClock()
        self.attempt = PlayedAttempt()
        self.tasks: list[Callable[[], None]] = []
        self.told: list[Failure] = []
        self.watch = ProgressWatch(
            "a",
            stall_after_s,
            start=self.tasks.append,
            stalled=lambda attempt, failure: self.told.append(failure),
            clock=self.clock,
        )

    def look(self, *, runs: bool = True, attempt: Any = None) -> None:
        self.watch.look(cast(Attempt, attempt or self.attempt), runs=runs)

    def pass_time(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.clock.advance(self.watch.every_s)
            self.look()


def test_paces_are_known_after_two_samples() -> None:
    one = Watched(None)
    one.look()
    one.look()  # too soon for another
    assert one.attempt.sampled == 1
    one.attempt.steps[4] = 10
    one.pass_time(SAMPLE_EVERY_S)
    assert one.watch.paces() == {4: Pace(10, 10 / SAMPLE_EVERY_S), 5: Pace(0, 0.0)}
    one.look(runs=False, attempt=PlayedAttempt())
    assert one.watch.paces() == {}
    one.watch.look(None, runs=True)
    one.pass_time(1000.0)
    assert one.tasks == []  # without a limit none stalls


def test_a_stall_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    one = Watched(20.0)
    assert one.watch.every_s == 1.0
    assert Watched(1.0).watch.every_s == 0.1
    one.attempt.steps[5] = 7
    one.look()
    one.pass_time(10.0)
    one.attempt.steps[4] = 1
    one.pass_time(15.0)
    assert len(one.tasks) == 1
    one.tasks[0]()
    (told,) = one.told
    assert (told.rank, told.local_rank, told.role, told.pid) == (5, 1, "trainer", 105)
    assert (told.kind, told.step, told.exit, told.host) == ("stall", 7, Exit(75), "a")
    assert told.message.startswith("no progress for 20 s; ")
    assert "rank 5 stalled: no progress for 20 s" in caplog.text
    one.pass_time(100.0)
    assert len(one.tasks) == 1
