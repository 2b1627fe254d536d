"""Runs torch's own RPC tests with torch and with ours, and compares: `make conformance`.

    python -m tests.conformance.run [--spawn] [--keep FOLDER] [class or class::test …]

Each test is run on this machine as it is, and by `python -m holdfast.torch_compat`. For each class
a line says how many pass with ours and with torch. A test that passes with torch and not with ours
is named beneath, with its reason of reasons.toml. What does not pass with torch either, or is
skipped (no GPU), is counted apart.

Ends with code 1 if a test differs for no known reason, or has one and passes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic

from tests.conformance import outcomes
from tests.conformance.compare import Comparison, Outcome, read_reasons

HERE = Path(__file__).resolve().parent
SIDES: dict[str, list[str]] = {"torch": [], "ours": ["-m", "holdfast.torch_compat"]}
# A test of torch ends its workers after the first time, and is itself ended after the second.
WORKERS_S = 60
TEST_S = 90
SIDE_S = 2 * 3600
ENDED_BY_ITSELF = (0, 1, 5)  # exit codes of pytest: all passed, some failed, none were left


def main(args: list[str]) -> int:
    """Run what is asked for and print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run")
    parser.add_argument("tests", nargs="*", metavar="test", help="Class or Class::test; else all")
    parser.add_argument("--spawn", action="store_true", help="start workers anew, as torch does")
    parser.add_argument("--keep", type=Path, help="a folder for outcomes: go on from those there")
    asked = parser.parse_args(args)
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
        folder = asked.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        sides = {
            side: run_side(side, asked.tests, folder, spawn=asked.spawn, limit_s=SIDE_S)
            for side in SIDES
        }
    comparison = Comparison(sides["torch"], sides["ours"], read_reasons(HERE / "reasons.toml"))
    print("\n".join(comparison.lines()))
    return 1 if comparison.troubles() else 0


def run_side(
    side: str, tests: list[str], folder: Path, *, limit_s: float, spawn: bool = False
) -> dict[str, Outcome]:
    """Run these tests, or all, with torch or with ours; return what became of each."""
    file = folder / f"{side}.jsonl"
    deadline = monotonic() + limit_s
    for arguments in _by_driver(tests):
        while True:
            before = outcomes.read(file)
            code = _run_pytest(side, arguments, file, spawn, deadline - monotonic())
            told = outcomes.read(file)
            if monotonic() > deadline:
                raise SystemExit(f"{side}: the tests went on for more than {limit_s:g} s")
            if code in ENDED_BY_ITSELF:
                if told == before or all(map(outcomes.is_done, told.values())):
                    break
            elif told == before:
                raise SystemExit(f"{side}: pytest ended with code {code}, and has run no test")
    return {test: tries[-1] for test, tries in outcomes.read(file).items()}


def _by_driver(tests: list[str]) -> list[list[str]]:
    """Return what pytest is to run, for one driver after the other."""
    faulty, other = str(HERE / "driver_faulty.py"), str(HERE / "driver_tensorpipe.py")
    if not tests:
        return [[faulty], [other]]
    asked = {
        faulty: [test for test in tests if "Faulty" in test],
        other: [test for test in tests if "Faulty" not in test],
    }
    return [[f"{driver}::{test}" for test in its] for driver, its in asked.items() if its]


def _run_pytest(side: str, tests: list[str], file: Path, spawn: bool, limit_s: float) -> int:
    """Run what is left of these tests; return pytest's exit code. Nothing of it outlives this."""
    command = [
        *(sys.executable, *SIDES[side], "-m", "pytest", "-c", str(HERE / "torchs.ini"), "--quiet"),
        *("--tb=native", "--no-header", "--no-summary", "-W", "ignore", f"--timeout={TEST_S}"),
        *tests,
    ]
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
        environment = os.environ | {
            outcomes.FILE: str(file),
            "CONFORMANCE_FORK": "0" if spawn else "1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(WORKERS_S),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": scratch,
            "TORCHINDUCTOR_CACHE_DIR": scratch,
        }
        process = subprocess.Popen(
            command, stdout=sys.stderr, env=environment, start_new_session=True, cwd=HERE.parents[1]
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            with suppress(ProcessLookupError):  # if there is nothing left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as by Ctrl-C
    sys.exit(main(sys.argv[1:]))
