"""A plugin of pytest: writes down what becomes of each test, at once, and goes on where it stopped.

One line of JSON for each test that begins, and for each that ends. What has passed, was skipped or
has had all its tries is not run again. So a run that was ended, by a test or by a limit, can be
started anew, and a test that ended it is known: it has begun and has not ended.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conformance.compare import Outcome

FILE = "CONFORMANCE_OUTCOMES"
# torch's tests wait for set times, some of a tenth of a second: a busy machine fails them at times.
TRIES = 2
WHY_MAX = 4000


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    told = read(Path(os.environ[FILE]))
    out = [item for item in items if is_done(told.get(name(item.nodeid), []))]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(nodeid, "hung", "")  # unless another line follows


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _write(report.nodeid, "skipped", report.longrepr[2])
    elif report.failed or report.when == "call":
        _write(report.nodeid, report.outcome, report.longreprtext[-WHY_MAX:])


def read(file: Path) -> dict[str, list[Outcome]]:
    """Return what became of each try of each test."""
    told: dict[str, list[Outcome]] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        test, outcome, why = json.loads(line)
        tries = told.setdefault(test, [])
        if outcome != "hung":
            tries.pop()
        tries.append((outcome, why))
    return told


def is_done(tries: list[Outcome]) -> bool:
    """Say whether a test need not be run again."""
    return bool(tries) and (tries[-1][0] in {"passed", "skipped"} or len(tries) >= TRIES)


def name(nodeid: str) -> str:
    """Return `Class::test` of what pytest calls a test."""
    return nodeid.partition("::")[2]


def _write(nodeid: str, outcome: str, why: str) -> None:
    with open(os.environ[FILE], "a", encoding="utf-8") as file:
        file.write(json.dumps([name(nodeid), outcome, why]) + "\n")
