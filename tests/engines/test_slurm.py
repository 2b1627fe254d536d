"""`holdfast run` in the steps of a real Slurm of two nodes, with munge."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.jobs import Bell
from tests.engines.hosts import Hosts, need
from tests.engines.pages import files, write
from tests.engines.slurm import Slurm
from tests.waiting import until

need("munged", "slurmd", "slurmctld", "sbatch")

HOSTS = "slurm_hosts"
WORKER = str(Path(__file__).with_name("worker.py"))
TWO = ("--nodes=2", "--ntasks-per-node=1")
STEP = "srun --kill-on-bad-exit=0 --no-kill holdfast run"


def script(line: str) -> str:
    return f"#!/bin/bash\n{line}\n"


@pytest.fixture(autouse=True)
def nothing_is_left(slurm: Slurm) -> Iterator[None]:
    """Every job is over at the end, and has left no process."""
    yield
    slurm.login("scancel", "--user=root", "--full", check=False)
    for host in slurm.hosts.nodes:
        host.has_none("worker.py")
        host.has_none("holdfast")
    slurm.ready()


def is_there(hosts: Hosts, *names: str) -> None:
    until(lambda: all((hosts.shared / name).exists() for name in names))


@pytest.mark.parametrize("name", ["job.sh", "elastic.sh"])
def test_a_script_of_the_page(slurm: Slurm, name: str) -> None:
    write("slurm", slurm.hosts.shared)
    job = slurm.submit(files("slurm")[name])
    assert slurm.ended(job) == "COMPLETED 0:0", slurm.output(job)
    told = slurm.output(job)
    assert sorted(re.findall(r"^rank \d of 2 on n\d$", told, re.MULTILINE)) == [
        "rank 0 of 2 on n1",
        "rank 1 of 2 on n2",
    ], told
    for node in (0, 1):
        first = f"holdfast: --on slurm: Slurm job {job}, step 0: node {node} of 2, "
        assert f"{first}run slurm-{job}-0-0\n" in told


def test_a_failure_is_slurms_too(slurm: Slurm) -> None:
    job = slurm.submit(script(f"{STEP} {WORKER} end 7"), *TWO)
    assert slurm.ended(job) == "FAILED 7:0"
    assert "rank 0 on n1 failed (exit code 7)" in slurm.output(job)
    accounted = (slurm.hosts.login.folder / "run" / "jobcomp.log").read_text()
    assert re.search(rf"^JobId={job} .*JobState=FAILED .*ExitCode=7:0 ?$", accounted, re.MULTILINE)


def test_a_step_in_salloc(slurm: Slurm) -> None:
    words = ["salloc", "--quiet", *TWO, *STEP.split(), WORKER, "end", "0"]
    assert "rank 1 of 2 on n2" in slurm.login(*words)


def test_a_script_without_srun_is_told_what_to_write(slurm: Slurm) -> None:
    job = slurm.submit(script(f"holdfast run {WORKER} end 0"), *TWO)
    assert slurm.ended(job) == "COMPLETED 0:0"
    told = slurm.output(job)
    assert "rank 0 of 1 on n1" in told
    assert "holdfast: this Slurm job has 2 nodes, and this job of holdfast runs on this" in told


def test_scancel_lets_workers_save_their_work(slurm: Slurm, bell: Bell) -> None:
    job = slurm.submit(script(f"{STEP} {WORKER} stay"), *TWO)
    bell.rung_by_all(2)
    slurm.login("scancel", job)
    is_there(slurm.hosts, "saved-0", "saved-1")
    assert slurm.ended(job).startswith("CANCELLED ")


def test_a_job_that_is_requeued_saves_its_work_and_starts_again(slurm: Slurm, bell: Bell) -> None:
    """As a job is that is preempted: it gets SIGTERM, and KillWait to end."""
    job = slurm.submit(script(f"{STEP} {WORKER} stay"), *TWO, "--requeue", "--open-mode=append")
    bell.rung_by_all(2)
    slurm.login("scontrol", "requeue", job)
    is_there(slurm.hosts, "saved-0", "saved-1")
    # Slurm lets a job that was requeued wait for two minutes.
    until(lambda: slurm.state(job).startswith("PENDING"), lambda: slurm.state(job), every_s=0.2)
    slurm.login("scontrol", "update", f"JobId={job}", "StartTime=now")
    bell.rung_by_all(2)
    assert f"restart 1: node 0 of 2, run slurm-{job}-0-1\n" in slurm.output(job)
    slurm.login("scancel", job)
    assert slurm.ended(job).startswith("CANCELLED ")
