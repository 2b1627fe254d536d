"""What every simulation needs around its seeds: a report of one, a run of many, a command line."""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.clock import SYSTEM_CLOCK
from holdfast.testing.faultplan import Fault, FaultPlan

__all__ = [
    "Plan",
    "Report",
    "RunSeed",
    "SeededRuns",
    "Tally",
    "command",
    "run_many",
    "usable_cores",
]

_SHOWN_MAX = 5
_NAMED_MAX = 100
_PROGRESS_EVERY_S = 10.0


class Plan(Protocol):
    """All that a seed decides; str() shows it to a person."""

    @property
    def faults(self) -> FaultPlan: ...


@dataclass(eq=False, slots=True)
class Report:
    """What came of a run. `module` is the one that runs it again."""

    module: str
    seed: int
    plan: Plan
    failures: list[str]
    trace: list[str] | None
    faults: Counter[Fault]
    counts: Counter[str] = field(default_factory=Counter)

    def trace_hash(self) -> str:
        """Return a digest of the trace; equal digests mean equal runs."""
        return hashlib.sha256("\n".join(self.trace or ()).encode()).hexdigest()

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {len(self.failures)} broken promises"]
        lines += [f"  {line}" for text in self.failures for line in text.split("\n")]
        lines += ["the plan was:"] + [f"  {line}" for line in str(self.plan).split("\n")]
        lines += ["faults that struck: " + _listed(self.faults)]
        lines += ["what happened: " + _listed(self.counts)]
        lines += [f"again: python -m {self.module} --seed {self.seed}"]
        return "\n".join(lines)


class RunSeed(Protocol):
    """Run one seed, and judge it."""

    def __call__(self, seed: int, *, traced: bool = False) -> Report: ...


def _listed(counts: Counter[Fault] | Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))


@dataclass(slots=True)
class Tally:
    """What came of many runs. `least` says how often some things must happen in each of them."""

    least: Mapping[str, int]
    runs: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[Report] = field(default_factory=list)
    """The first few of the runs in which a promise was broken."""
    broken_seeds: list[int] = field(default_factory=list)

    @property
    def broken_runs(self) -> int:
        """In how many runs a promise was broken."""
        return len(self.broken_seeds)

    def add(self, report: Report) -> None:
        """Count one more run."""
        self.runs += 1
        self.faults.update(report.faults)
        self.counts.update(report.counts)
        if report.failures:
            self.broken_seeds.append(report.seed)
            if self.broken_runs <= _SHOWN_MAX:
                self.broken.append(report)

    def too_easy(self) -> str | None:
        """Return None if the runs, taken together, were hard enough to mean something."""
        rare = self.runs // 50
        easy = [
            f"{one} struck {self.faults[one]} times" for one in Fault if self.faults[one] <= rare
        ]
        easy += [
            f"only {number} {name}"
            for name, number in self.counts.items()
            if number <= rare or number < self.least.get(name, 0) * self.runs
        ]
        return f"{self.runs} runs were too easy to count: " + ", ".join(easy) if easy else None

    def __str__(self) -> str:
        lines = [f"faults: {_listed(self.faults)}", f"events: {_listed(self.counts)}"]
        if self.broken_seeds:
            named = ", ".join(map(str, self.broken_seeds[:_NAMED_MAX]))
            more = ", ..." if self.broken_runs > _NAMED_MAX else ""
            lines.append(f"broken seeds: {named}{more}")
        return "\n".join(lines)


def run_many(
    run_seed: RunSeed,
    least: Mapping[str, int],
    seeds: Iterable[int],
    processes: int,
    show: Callable[[str], object],
    progress: Callable[[Tally], object] = lambda tally: None,
) -> Tally:
    """Run many seeds, untraced; `show` gets the first broken ones as they are found.

    `progress` is called after each run. An interrupt ends it soon: no more seeds are begun.
    """
    tally = Tally(least)
    with ProcessPoolExecutor(processes) if processes > 1 else nullcontext() as pool:
        reports = pool.map(run_seed, seeds, chunksize=16) if pool else map(run_seed, seeds)
        try:
            for report in reports:
                tally.add(report)
                if report in tally.broken:
                    show(f"{report}\n")
                progress(tally)
        finally:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
    return tally


def command(
    title: str,
    module: str,
    run_seed: RunSeed,
    least: Mapping[str, int],
    argv: Sequence[str] | None,
) -> int:
    """Run seeds from the command line; 0 if no promise was broken and the runs count."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--seed", type=int, help="run this one, and print its trace")
    parser.add_argument("--seeds", type=_positive, default=1000, help="run so many (1000)")
    parser.add_argument("--start", type=int, help="the first of them (fresh ones each time)")
    cores = usable_cores()
    parser.add_argument(
        "--processes", type=_positive, default=cores, help=f"on so many processes ({cores})"
    )
    options = parser.parse_args(argv)
    write = sys.stdout.write
    if options.seed is not None:
        report = run_seed(options.seed, traced=True)
        write("\n".join([*(report.trace or ()), str(report), ""]))
        return 1 if report.failures else 0
    start = options.start
    if start is None:
        start = random.SystemRandom().randrange(1 << 40)
    write(f"{title}: {options.seeds} seeds from {start}\n")
    sys.stdout.flush()
    seeds = range(start, start + options.seeds)
    said_at = SYSTEM_CLOCK.monotonic()

    def progress(tally: Tally) -> None:
        nonlocal said_at
        if SYSTEM_CLOCK.monotonic() >= said_at + _PROGRESS_EVERY_S:
            said_at = SYSTEM_CLOCK.monotonic()
            write(f"{tally.runs} of {options.seeds} seeds, {tally.broken_runs} broke a promise\n")
            sys.stdout.flush()

    tally = run_many(run_seed, least, seeds, options.processes, write, progress)
    easy = tally.too_easy()
    write(f"{tally}\n" + (f"{easy}\n" if easy else ""))
    write(f"{tally.broken_runs} of {tally.runs} seeds broke a promise\n")
    return 1 if tally.broken_runs or easy else 0


@dataclass(frozen=True, slots=True)
class SeededRuns:
    """One simulation over many seeds: `run_seeds` and `main` are what its module offers.

    `module` is what runs it from the command line, and `least` says how often some things must
    happen in each run.
    """

    title: str
    module: str
    run_seed: RunSeed
    least: Mapping[str, int]

    def run_seeds(
        self,
        seeds: Iterable[int],
        *,
        processes: int = 1,
        show: Callable[[str], object] = lambda text: None,
    ) -> Tally:
        """Run many seeds, untraced; `show` gets the first broken ones as they are found."""
        return run_many(self.run_seed, self.least, seeds, processes, show)

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run seeds from the command line; 0 if no promise was broken and the runs count."""
        return command(self.title, self.module, self.run_seed, self.least, argv)


def usable_cores() -> int:
    """Return on how many processor cores this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be 1 or more")
    return int(text)
