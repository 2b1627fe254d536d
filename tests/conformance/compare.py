"""Compares what became of torch's tests with torch and with ours, and says why they differ.

Pure: outcomes and reasons in, lines out. `run.py` runs the tests.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Kinds of reasons that do not count in the share which ours passes of what torch passes.
ASIDE = {
    "torchscript": "calls and RRefs inside TorchScript",
    "profiler": "events of a profiler from other workers",
}

Outcome = tuple[str, str]  # passed, failed, skipped or hung; and why


@dataclass(frozen=True)
class Reason:
    """Why tests pass with torch and not with ours."""

    kind: str
    why: str


def read_reasons(file: Path) -> dict[str, Reason]:
    """Read the reason of each test that has one."""
    reasons: dict[str, Reason] = {}
    for entry in tomllib.loads(file.read_text(encoding="utf-8"))["reason"]:
        for test in entry["tests"]:
            if test in reasons:
                raise ValueError(f"{file.name}: {test} has two reasons; one is right")
            reasons[test] = Reason(entry["kind"], entry["why"])
    return reasons


class Comparison:
    """torch's tests, with torch and with ours."""

    def __init__(
        self, torch: dict[str, Outcome], ours: dict[str, Outcome], reasons: dict[str, Reason]
    ) -> None:
        self._torch, self._ours, self._reasons = torch, ours, reasons

    def troubles(self) -> list[str]:
        """Return the tests that differ for no known reason, or differ no more and have one."""
        return [test for test in self._torch if self._trouble(test)]

    def lines(self) -> Iterator[str]:
        """Yield the comparison, a line for each class and for each test that differs."""
        yield f"{'ours':>5} / {'torch':<5}  {'class':<36}  apart"
        for name in dict.fromkeys(_class(test) for test in self._torch):
            tests = [test for test in self._torch if _class(test) == name]
            yield self._counts(tests, name)
            for test in tests:
                yield from self._difference(test)
        yield self._counts(self._torch, "all of them")
        yield from self._shares()

    def _counts(self, tests: Iterable[str], name: str) -> str:
        tests = list(tests)
        ours = sum(self._passes(self._ours, test) for test in tests if self._counted(test))
        torch = sum(self._counted(test) for test in tests)
        skipped = sum(self._torch[test][0] == "skipped" for test in tests)
        apart = {"skipped": skipped, "fail with torch": len(tests) - torch - skipped}
        said = ", ".join(f"{count} {what}" for what, count in apart.items() if count)
        return f"{ours:>5} / {torch:<5}  {name:<36}  {said}".rstrip()

    def _difference(self, test: str) -> Iterator[str]:
        trouble = self._trouble(test)
        if trouble:
            yield f"      {_name(test)}: {trouble}"
        elif self._differs(test):
            yield f"      {_name(test)}: {self._reasons[test].why}"

    def _shares(self) -> Iterator[str]:
        """Yield what is set aside, and the share that ours passes of the rest."""
        rest = [test for test in self._torch if self._counted(test)]
        for kind, what in ASIDE.items():
            here = [test for test in rest if self._differs(test) and self._kind(test) == kind]
            rest = [test for test in rest if test not in here]
            yield f"aside: {len(here)} for {what}"
        ours = sum(self._passes(self._ours, test) for test in rest)
        share = 100 * ours / len(rest) if rest else 100.0
        yield f"of the rest, {ours} of {len(rest)} pass: {share:.1f} %"

    def _trouble(self, test: str) -> str | None:
        if self._differs(test) and test not in self._reasons:
            outcome, why = self._ours.get(test, ("missing", ""))
            return f"NO REASON IS KNOWN: {outcome}: {_gist(why)}"
        if test in self._reasons and self._passes(self._ours, test):
            return "PASSES, and has a reason not to"
        return None

    def _kind(self, test: str) -> str | None:
        return self._reasons[test].kind if test in self._reasons else None

    def _differs(self, test: str) -> bool:
        return self._counted(test) and not self._passes(self._ours, test)

    def _counted(self, test: str) -> bool:
        return self._passes(self._torch, test)

    def _passes(self, side: dict[str, Outcome], test: str) -> bool:
        return side.get(test, ("", ""))[0] == "passed"


def _class(test: str) -> str:
    return test.partition("::")[0]


def _name(test: str) -> str:
    return test.partition("::")[2]


def _gist(text: str) -> str:
    """Return the line that says most: the last that names an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line), (lines or [""])[-1])
