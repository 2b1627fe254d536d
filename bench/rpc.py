"""RPC between processes of one machine, beside rivals and what the machine allows.

Layout, in reading order
    rpc.py           whom to measure, how long, in which order
    rpc_report.py    figures as tables, and whether our aims are met
    rpc_subject.py   what a subject is
    rpc_workers.py   holdfast, torch, and torch's names bound to holdfast
    rpc_rivals.py    gRPC, Ray, rpyc, pyzmq
    rpc_limits.py    raw sockets, copies of memory
    rpc_subjects.py  all of them by name
    rpc_calls.py     the functions that are called
    rpc_callee.py    a process that is called
    rpc_caller.py    a process that calls and measures
    rpc_idle.py      what a connected peer costs
    rpc_torch.py     torch's RPC by torch and by holdfast
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import NamedTuple

from bench.rpc_idle import IDLE
from bench.rpc_report import FAILED, MISSING, Data, report
from bench.rpc_subjects import SUBJECTS
from bench.subjects import ROOT

__all__ = ["QUICK", "WHOLE", "Effort", "calls", "medians", "run"]

PATIENCE_S = 120.0
QUIET = {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}


class Effort(NamedTuple):
    """How much to measure: so often, so long for each figure, with so large arrays."""

    rounds: int
    seconds: float
    megabytes: tuple[int, ...]
    peers: int


QUICK = Effort(rounds=1, seconds=0.05, megabytes=(1, 4), peers=3)
WHOLE = Effort(rounds=3, seconds=0.3, megabytes=(1, 16, 64, 256), peers=17)


def calls(effort: Effort) -> tuple[str, object]:
    """Measure everyone in turn, round by round; each figure is the median of the rounds."""
    sizes = ",".join(map(str, effort.megabytes))
    subjects = {name: subject for name, subject in SUBJECTS.items() if name != "facade"}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in subjects}
    for _ in range(effort.rounds):
        for name, subject in subjects.items():
            if subject.installed():
                rounds[name].append(run("rpc_caller", name, str(effort.seconds), sizes))
    idle = {
        name: [run("rpc_idle", "hub", name, str(effort.peers))]
        for name, subject in IDLE.items()
        if subject.installed()
    }
    data = {name: medians(figures) for name, figures in rounds.items()}
    costs = {name: medians(idle.get(name, [])) for name in IDLE}
    text = report(data, costs, effort.megabytes)
    return text, {"rounds": rounds, "medians": data, "idle": costs}


def run(module: str, *words: str) -> dict[str, float]:
    """Run a program and return its figures; none if it fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{module}", *words],
            cwd=ROOT,
            env=os.environ | QUIET,
            stdout=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=True,
        )
    except subprocess.SubprocessError as error:
        print(error, file=sys.stderr)
        return {}
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def medians(rounds: list[dict[str, float]]) -> Data:
    """Return the median of each figure; in words, why there is none."""
    if not rounds:
        return MISSING
    if not any(rounds):
        return FAILED
    every = {label for figures in rounds for label in figures}
    return {
        label: statistics.median(figures[label] for figures in rounds if label in figures)
        for label in every
    }
