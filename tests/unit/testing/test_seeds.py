"""Reports and tallies of simulated runs. The command line is tested with each simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from holdfast.testing.faultplan import Fault, FaultPlan
from holdfast.testing.seeds import Report, Tally, run_many


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
    assert str(tally).endswith("events: calls 465")


def test_runs_count_only_if_enough_happened() -> None:
    def hard(least: dict[str, int]) -> str | None:
        return run_many(run, least, range(1, 5), 1, lambda text: None).too_easy()

    assert hard({"calls": 2}) is None
    assert hard({"calls": 3}) == "4 runs were too easy to count: only 10 calls"
    easy = Tally({}).too_easy()
    assert easy is not None
    assert "drop struck 0 times" in easy
