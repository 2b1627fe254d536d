"""RPC between processes of one machine, beside rivals and what the machine allows.

Layout, in reading order
    rpc.py           what to measure, how long, in which order
    rpc_report.py    figures as tables
    rpc_subject.py   what a subject is
    rpc_workers.py   holdfast, torch, and torch's names bound to holdfast
    rpc_rivals.py    gRPC, Ray, rpyc, pyzmq
    rpc_limits.py    raw sockets, copies of memory
    rpc_subjects.py  all of them by name
    rpc_calls.py     the functions that are called
    rpc_callee.py    a process that is called
    rpc_caller.py    a process that calls and measures
    rpc_training.py  references and training steps by torch's names
    rpc_idle.py      what a connected peer costs
    rpc_threads.py   many threads that call, and threads that make one call and end
    rpc_worlds.py    worlds of many workers
    rpc_torch.py     torch's RPC by torch and by holdfast
    rpc_values.py    values that calls carry
    rpc_payloads.py  a process that sends values to another one of this host
    rpc_hosts.py     a process that sends values to another host
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from bench.progress import say
from bench.rpc_idle import IDLE
from bench.rpc_report import FAILED, MISSING, Data, report
from bench.rpc_subjects import SUBJECTS
from bench.subjects import ROOT

__all__ = ["QUICK", "WHOLE", "Effort", "Rounds", "calls", "medians", "run", "take_turns"]

PATIENCE_S = 300.0
COMPARED = ("bytes", "copies", "holdfast", "torch")
"""Whose figures the aims compare."""
QUIET = {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}


Rounds = dict[str, list[dict[str, float]]]
"""For each subject, the figures of each round."""


class Effort(NamedTuple):
    """How much to measure: so often, so long for each figure, with so large arrays."""

    rounds: int
    seconds: float
    megabytes: tuple[int, ...]
    peers: int


QUICK = Effort(rounds=1, seconds=0.05, megabytes=(1, 4), peers=3)
WHOLE = Effort(rounds=3, seconds=0.3, megabytes=(1, 16, 64, 256), peers=17)


def calls(effort: Effort, part: str = "") -> tuple[str, object]:
    """Measure everyone in turn, round by round; each figure is the median of the rounds.

    A part is measured without rivals.
    """
    sizes = ",".join(map(str, effort.megabytes))
    names = [name for name in SUBJECTS if name != "facade"]
    if part:
        names = [name for name in COMPARED if part in SUBJECTS[name].measures]
    rounds = take_turns("rpc_caller", names, effort.rounds, str(effort.seconds), sizes, part)
    idle = {}
    for name, subject in IDLE.items():
        if subject.installed() and not part:
            say(f"rpc: what an idle peer costs {subject.label}")
            idle[name] = [run("rpc_idle", "hub", name, str(effort.peers))]
    data = {name: medians(figures) for name, figures in rounds.items()}
    costs = {name: medians(idle.get(name, [])) for name in IDLE}
    text = report(data, costs, effort.megabytes)
    return text, {"rounds": rounds, "medians": data, "idle": costs}


def take_turns(module: str, names: Sequence[str], count: int, *words: str) -> Rounds:
    """Run a program for each of these subjects that is installed, round by round."""
    rounds: Rounds = {name: [] for name in names}
    for turn in range(count):
        for name in names:
            if SUBJECTS[name].installed():
                say(f"{module}, round {turn + 1} of {count}: {SUBJECTS[name].label}")
                rounds[name].append(run(module, name, *words))
    return rounds


def run(module: str, *words: str, within: Sequence[str] = ()) -> dict[str, float]:
    """Run a program and return its figures; none if it fails. `within` precedes its command."""
    try:
        done = subprocess.run(
            [*within, sys.executable, "-m", f"bench.{module}", *words],
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
