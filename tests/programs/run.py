"""Runs programs that others wrote for torch, with torch and with ours: `make programs`.

    python -m tests.programs.run [name …]

Each program prints lines with `figure …`: what it has come to, each in one write, so that no other
process writes in between, and after a line feed, since others may have written a part of a line. It
is run by torchrun, or with torch's own RPC, then by `holdfast run` or
`python -m holdfast.torch_compat`, and the figures are compared. The packages are in .venv/programs,
apart from what the tests import (requirements/programs.txt).

Ends with code 1 if a figure differs, or a program fails.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
PACKAGES = ROOT / ".venv" / "programs"
LIMIT_S = 300.0
SIDES = ("torch", "ours")


@dataclass(frozen=True)
class Outcome:
    """What a program has printed of its figures, in a fixed order, and how it ended."""

    figures: tuple[str, ...]
    ended: str  # nothing if it ended well


def launcher(side: str, nproc: int) -> list[str]:
    """Return the command that launches a script on this node."""
    command = {"torch": ["-m", "torch.distributed.run"], "ours": ["-m", "holdfast", "run"]}
    return [sys.executable, *command[side], "--standalone", f"--nproc-per-node={nproc}"]


def python(side: str) -> list[str]:
    """Return the command that runs a script or a module."""
    return [sys.executable, *([] if side == "torch" else ["-m", "holdfast.torch_compat"])]


def commands(side: str) -> dict[str, list[str]]:
    """Return the command of each program."""
    script = {path.stem: str(path) for path in SCRIPTS.glob("*.py")}
    torchx = ["-m", "torchx.cli.main", "run", "-s", "local_cwd", "dist.ddp", "-j", "1x2"]
    return {
        "accelerate": [*launcher(side, 2), script["accelerate_train"]],
        "lightning": [*launcher(side, 2), script["lightning_train"]],
        "torchft": [sys.executable, script["torchft_groups"], *launcher(side, 1)],
        "torchrl": [*python(side), script["torchrl_collect"]],
        "torchx": [*python(side), *torchx, "--script", script["torchx_sum"]],
    }


def main(args: list[str]) -> int:
    """Run what is asked for and print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.run")
    parser.add_argument(
        "programs", nargs="*", metavar="program", help=f"of {', '.join(commands('ours'))}; else all"
    )
    asked = parser.parse_args(args).programs or list(commands("ours"))
    if unknown := set(asked) - commands("ours").keys():
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    is_same = True
    print(row("program", "torch", "ours", ""))
    for name in asked:
        torch, ours = (run(commands(side)[name]) for side in SIDES)
        for line in compare(name, torch, ours):
            print(line, flush=True)
        is_same &= same(torch, ours)
    return 0 if is_same else 1


def same(torch: Outcome, ours: Outcome) -> bool:
    """Say whether both ended well, with the same figures, and with some."""
    return bool(torch.figures) and torch == ours and not torch.ended


def compare(name: str, torch: Outcome, ours: Outcome) -> Iterator[str]:
    """Give a row for each figure, and for a bad end."""
    for theirs, mine in zip_longest(torch.figures, ours.figures, fillvalue="-"):
        yield row(name, theirs, mine, "same" if theirs == mine else "DIFFERENT")
    if torch.ended or ours.ended:
        yield row(name, torch.ended or "ended well", ours.ended or "ended well", "FAILED")
    elif not torch.figures and not ours.figures:
        yield row(name, "no figure", "no figure", "FAILED")


def row(name: str, theirs: str, mine: str, verdict: str) -> str:
    """Return a line of the table."""
    return f"{name:11} {theirs:34} {mine:34} {verdict}".rstrip()


def figures(output: str) -> tuple[str, ...]:
    """Return what follows `figure` in the lines of an output; processes print in any order."""
    return tuple(sorted(re.findall(r"\bfigure (.+?)\s*$", output, re.MULTILINE)))


def run(command: list[str], limit_s: float = LIMIT_S) -> Outcome:
    """Run a program; nothing of it outlives this. What it printed is shown if it fails."""
    paths = [str(PACKAGES), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory(prefix="programs-") as scratch:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TMPDIR": scratch,
            "TORCHINDUCTOR_CACHE_DIR": scratch,
        }
        output = Path(scratch) / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, env=environment, start_new_session=True, cwd=ROOT
            )
            try:
                code = process.wait(limit_s)
                ended = f"exit code {code}" if code else ""
            except subprocess.TimeoutExpired:
                ended = f"not done within {limit_s:g} s"
            finally:
                with suppress(ProcessLookupError):  # if there is nothing left
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        told = output.read_text(encoding="utf-8", errors="replace")
    if ended:
        sys.stderr.write(f"{' '.join(command)}: {ended}\n{told[-8000:]}\n")
    return Outcome(figures(told), ended)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as by Ctrl-C
    sys.exit(main(sys.argv[1:]))
