"""The demonstration happens as it is told: a worker dies, a node dies, and the sum is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.reporting import TIMEOUT_S

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demonstration_tells_its_story() -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()

    def places(pattern: str) -> list[int]:
        return [index for index, line in enumerate(lines) if re.search(pattern, line)]

    [worker], [node] = places("worker 3 is killed"), places("node 1 is killed")
    [gone], [total] = (
        places("its workers are gone with it"),
        places("the sum .* is right$"),
    )
    assert worker < node < gone < total == len(lines) - 1
    # Six workers before the harm and again after it; four once there are two nodes left.
    first, second = places(r"workers . and . of 6 run"), places(r"workers . and . of 4 run")
    assert len([index for index in first if index < worker]) >= 3
    assert len([index for index in first if worker < index < node]) == 3
    assert len([index for index in second if index > node]) == 2
    assert all(worker < index for index in places(r"rank 3 on \S+ failed \(killed by SIGKILL\)"))
    # The ledger is opened in every round, by the worker 0 of that round, and goes on from there.
    opened = places(r"worker 0 +opens the ledger: \d+ parts are missing, \d workers do them")
    [closed] = places(r"worker 0 +closes the ledger: \d+ by worker0 and .* by worker3, none")
    told = [re.findall(r"(\d+) parts .* (\d) workers", lines[index]) for index in opened]
    assert told[-3:] == [[("40", "6")], [("24", "6")], [("12", "4")]]
    assert opened[-3] < worker < opened[-2] < node < opened[-1] < closed < total
    assert [index for index in places(r"round \d+ is over: \S+ is gone") if index > node]
