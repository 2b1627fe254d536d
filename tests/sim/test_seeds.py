"""Reports and tallies of simulated runs. The command line is tested with each simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.testing.faultplan import Fault, FaultPlan
from tests.sim import seeds
from tests.sim.seeds import Report, RunSeed, Tally, command, run_many, usable_cores
from tests.waiting import until


@dataclass(frozen=True)
class Planned:
    faults: FaultPlan

    def __str__(self) -> str:
        return "a plan"


def run(seed: int, *, traced: bool = False) -> Report:
    """Pretend to run a seed: the odd ones break a promise."""
    faults = Counter(dict.fromkeys(Fault, seed))
    failures = ["it went wrong\nbadly"] * (seed % 2)
    return Report(
        "a.module", seed, Planned(FaultPlan()), failures, None, faults, Counter(calls=seed)
    )


def run_slowly(seed: int, *, traced: bool = False) -> Report:
    """Run a seed so slowly that all of many seeds would never end."""
    until(Deadline.after(0.02).passed)
    return run(seed)


def test_a_report_shows_what_broke_and_how_to_see_it_again() -> None:
    lines = str(run(3)).split("\n")
    assert lines[:3] == ["seed 3: 1 broken promises", "  it went wrong", "  badly"]
    assert "  a plan" in lines
    assert lines[-2:] == ["what happened: calls 3", "again: python -m a.module --seed 3"]


def test_equal_traces_have_equal_hashes() -> None:
    one, two = run(1), run(1)
    one.trace, two.trace = ["a", "b"], ["a", "b"]
    assert one.trace_hash() == two.trace_hash()
    two.trace = ["a", "c"]
    assert one.trace_hash() != two.trace_hash()


def test_the_first_broken_runs_are_shown_and_all_are_counted() -> None:
    shown: list[str] = []
    tally = run_many(run, {}, range(1, 31), 1, shown.append)
    assert (tally.runs, tally.broken_runs) == (30, 15)
    assert [report.seed for report in tally.broken] == [1, 3, 5, 7, 9]
    assert len(shown) == 5
    assert "events: calls 465\nbroken seeds: 1, 3, 5, 7, 9, 11," in str(tally)
    assert str(tally).endswith(", 27, 29")


def test_of_many_broken_seeds_a_hundred_are_named() -> None:
    tally = run_many(run, {}, range(1, 203), 1, lambda text: None)
    assert tally.broken_runs == 101
    assert str(tally).endswith(", 199, ...")


def test_progress_is_told_after_each_run() -> None:
    told: list[int] = []
    run_many(run, {}, range(4), 1, lambda text: None, lambda tally: told.append(tally.runs))
    assert told == [1, 2, 3, 4]


def test_several_processes_give_the_same_and_an_interrupt_ends_them_soon() -> None:
    assert run_many(run, {}, range(100), 2, lambda text: None).broken_runs == 50

    def interrupt(tally: Tally) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_many(run_slowly, {}, range(100_000), 2, lambda text: None, interrupt)


def test_the_command_uses_all_cores_and_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used: list[int] = []

    def in_so_many(run: RunSeed, least: object, seeds: range, processes: int, *tell: Any) -> Tally:
        used.append(processes)
        return run_many(run, {}, seeds, 1, *tell)

    monkeypatch.setattr(seeds, "run_many", in_so_many)
    monkeypatch.setattr(seeds, "_PROGRESS_EVERY_S", 0.0)
    arguments = ["--seeds", "4", "--start", "8"]
    assert command("a title", "a.module", run, {}, arguments) == 1
    assert command("a title", "a.module", run, {}, [*arguments, "--processes", "3"]) == 1
    assert used == [usable_cores(), 3]
    said = capsys.readouterr().out
    assert said.startswith("a title: 4 seeds from 8\n1 of 4 seeds, 0 broke a promise\n")
    assert said.endswith("broken seeds: 9, 11\n2 of 4 seeds broke a promise\n")


def test_cores_that_this_process_may_not_use_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3}, raising=False)
    assert usable_cores() == 1
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    assert usable_cores() == 5
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert usable_cores() == 1


def test_runs_count_only_if_enough_happened() -> None:
    def hard(least: dict[str, int]) -> str | None:
        return run_many(run, least, range(1, 5), 1, lambda text: None).too_easy()

    assert hard({"calls": 2}) is None
    assert hard({"calls": 3}) == "4 runs were too easy to count: only 10 calls"
    easy = Tally({}).too_easy()
    assert easy is not None
    assert "drop struck 0 times" in easy
