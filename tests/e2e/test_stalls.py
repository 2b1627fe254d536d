"""Workers that make no progress, in real jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.steered import SteeredJobs, steered_jobs

HANG = """\
import os, signal, sys
import holdfast

folder, rank, restarts = sys.argv[1], os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]

def next_batch():
    signal.pause()

def all_reduce():
    signal.pause()

if restarts == "0":
    open(os.path.join(folder, rank), "w").close()
    while len(os.listdir(folder)) < 3:  # busy, so that a slow start is no stall
        pass
    holdfast.progress(step=7)
    next_batch() if rank == "2" else all_reduce()
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[SteeredJobs]:
    with steered_jobs(tmp_path) as made:
        yield made


def started(jobs: SteeredJobs) -> str:
    """Return a folder in which workers say that they have started."""
    folder = jobs.folder / "started"
    folder.mkdir()
    return str(folder)


def test_a_stall_leaves_the_stacks_and_restarts(jobs: SteeredJobs) -> None:
    flags = ["--nproc-per-node=3", "--stall-after=5s", "--max-restarts=1"]
    done = jobs.call("run", *flags, jobs.script(HANG), started(jobs))
    assert done.returncode == 0, done.stderr
    assert "ranks 0-1: all_reduce ← <module>; rank 2: next_batch ← <module>" in done.stderr
    assert "1 restart (rank 2: stall)" in done.stderr


def test_a_stall_that_no_rule_forgives_ends_the_job(jobs: SteeredJobs) -> None:
    report = jobs.folder / "report.json"
    flags = ["--nproc-per-node=3", "--stall-after=5s", "--max-restarts=1", "--no-restart-on=stall"]
    done = jobs.call("run", *flags, f"--report={report}", jobs.script(HANG), started(jobs))
    assert done.returncode == 75, done.stderr
    told = json.loads(report.read_text())
    (first,) = told["failures"]
    assert (first["rank"], first["kind"], first["step"]) == (2, "stall", 7)
    assert "in next_batch" in first["stack"]
    assert "no restart after stall: giving up" in told["reason"]
