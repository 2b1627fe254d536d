"""`holdfast stack` against a real job: workers that hang in every way, and one that is busy."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.process.outcome.stacks import kernel_state
from tests.e2e.steered import SteeredJobs, steered_jobs
from tests.waiting import until

SCRIPT = """\
import ctypes, os, signal, sys, threading

def all_reduce(lock=threading.Lock()):
    lock.acquire()
    there()
    lock.acquire()

def native():
    reader, _ = os.pipe()
    there()
    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)  # with the lock held

def spin():
    there()
    while True:
        pass

def halt():
    there()
    os.kill(os.getpid(), signal.SIGSTOP)

def there():
    os.write(1, b"here\\n")

def step():
    [all_reduce, all_reduce, native, spin, halt][int(os.environ["RANK"])]()

step()
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[SteeredJobs]:
    with steered_jobs(tmp_path) as made:
        yield made


def test_each_way_to_hang_is_shown_and_equal_stacks_are_merged(jobs: SteeredJobs) -> None:
    job = jobs.start("--nproc-per-node=5", "--shutdown-timeout=1", jobs.script(SCRIPT))
    assert job.stdout is not None
    for _ in range(5):
        assert job.stdout.readline() == "here\n"
    (agent,) = jobs.running()["agents"]
    pids = [worker["pid"] for worker in agent["workers"]]
    until(lambda: kernel_state(pids[4])[0] == "stopped by a signal")
    titles: list[str] = []

    def all_are_there() -> bool:
        shown = jobs.call("stack").stdout.splitlines()
        titles[:] = [line for line in shown if line.startswith("rank")]
        return titles[:3] == [
            "ranks 0-1: all_reduce ← step ← <module>",
            "rank 2: native ← step ← <module>",
            "rank 3: spin ← step ← <module>",
        ]

    until(all_are_there, lambda: titles, every_s=0.05)  # two may be on the way still
    assert titles[3].startswith("rank 4: no stack: the process does not run; stopped by a signal")
    found = json.loads(jobs.call("stack", "--json", "--rank", "0,2-3").stdout)
    assert [one["rank"] for one in found["stacks"]] == [0, 2, 3]
    assert [one["pid"] for one in found["stacks"]] == [pids[0], pids[2], pids[3]]
    assert all("in step" in one["text"] for one in found["stacks"])

    done = jobs.call("stack", "--rank", "4,7")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "holdfast: rank 7: not on this machine; here are ranks 0-4\n"
    assert all(worker["running"] for worker in jobs.status()["agents"][0]["workers"])
    job.send_signal(signal.SIGTERM)
    job.wait(60)


def test_a_program_that_is_no_python_shows_what_it_waits_for(jobs: SteeredJobs) -> None:
    jobs.start("--no-python", "--nproc-per-node=2", "sleep", "1000")
    jobs.running()
    shown = jobs.call("stack").stdout
    assert shown.startswith("ranks 0-1: no stack: it is no Python that writes its stacks; sleeping")
    assert jobs.call("stop").returncode == 0
