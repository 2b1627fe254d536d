"""However an agent dies, nothing is left of its workers: processes, folder, control group."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.process.stop.containment import Containment
from tests.e2e.contained_agent import WORKERS

AGENT = Path(__file__).with_name("contained_agent.py")
ROOT = Path(__file__).resolve().parents[2]
WITHIN_MS = 20_000
DEATHS = ["SIGKILL", "SIGTERM", "SIGINT", "SIGSEGV", "SIGABRT"]


class Agent:
    """An agent that has reached its phase, with workers that are all up."""

    def __init__(self, process: subprocess.Popen[bytes], facts: dict[str, Any]) -> None:
        self.process = process
        self.facts = facts
        self.watched = [os.pidfd_open(pid) for pid in facts["pids"]]
        if facts["reaper"]:
            self.watched.append(os.pidfd_open(facts["reaper"]))

    def die(self, name: str) -> None:
        self.process.send_signal(signal.Signals[name])
        assert self.process.wait(WITHIN_MS / 1000) != 0

    def wait_for_watched(self) -> None:
        """Wait for the ends of the workers and of the reaper."""
        for fd in self.watched:
            assert ready(fd), f"still there: {carriers(self.facts['token'])}"

    def wait_for_all(self) -> None:
        """Wait for the end of everything that the agent ever started."""
        self.wait_for_watched()
        assert self.process.stdout is not None
        assert ready(self.process.stdout.fileno())
        rest = self.process.stdout.read()
        assert set(rest.split()) <= {b"up"}

    def check_nothing_is_left(self) -> None:
        assert carriers(self.facts["token"]) == []
        assert not os.path.exists(self.facts["folder"])
        assert not (self.facts["cgroup"] and os.path.exists(self.facts["cgroup"]))


def ready(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(WITHIN_MS))


def carriers(token: str) -> list[str]:
    """Return the processes that bear the mark; one that has ended has no environment any more."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"HOLDFAST_GROUP={token}".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


@contextlib.contextmanager
def agent(phase: str, *options: str) -> Iterator[Agent]:
    process = subprocess.Popen(
        [sys.executable, str(AGENT), phase, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    up, facts = 0, None
    try:
        while facts is None or up < facts["processes"] * (1 if phase == "start" else WORKERS):
            line = process.stdout.readline()
            assert line, "the agent has ended"
            if line == b"up\n":
                up += 1
            else:
                facts = json.loads(line)
        process.stdin.close()
        if phase == "stop":
            assert process.stdout.readline() == b"stopping\n"
        one = Agent(process, facts)
        try:
            yield one
        finally:
            for fd in one.watched:
                os.close(fd)
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("cgroup", ["cgroup", "no-cgroup"])
@pytest.mark.parametrize("death", DEATHS)
def test_death_while_workers_run(death: str, cgroup: str) -> None:
    with agent("run", cgroup) as one:
        if cgroup == "cgroup" and one.facts["cgroup"] is None:
            pytest.skip("no control group of version 2 can be made here")
        one.die(death)
        one.wait_for_all()
        one.check_nothing_is_left()


@pytest.mark.parametrize("phase", ["start", "stop"])
@pytest.mark.parametrize("death", DEATHS)
def test_death_while_workers_start_or_stop(death: str, phase: str) -> None:
    with agent(phase, "no-cgroup") as one:
        one.die(death)
        one.wait_for_all()
        one.check_nothing_is_left()


def test_without_reaper_and_control_group_the_workers_still_die() -> None:
    with agent("run", "no-cgroup", "no-reaper", "alone") as one:
        assert len(one.watched) == WORKERS
        one.die("SIGKILL")
        one.wait_for_all()
        with Containment():  # of a later agent, which does what the reaper would have done
            one.check_nothing_is_left()


@pytest.mark.parametrize("cgroup", ["cgroup", "no-cgroup"])
def test_what_an_agent_leaves_that_dies_with_its_reaper_is_removed_by_a_later_one(
    cgroup: str,
) -> None:
    with agent("run", cgroup, "alone") as one:
        if cgroup == "cgroup" and one.facts["cgroup"] is None:
            pytest.skip("no control group of version 2 can be made here")
        with Containment():
            assert os.path.exists(one.facts["folder"])
        os.kill(one.facts["reaper"], signal.SIGKILL)
        one.die("SIGKILL")
        one.wait_for_all()
        with Containment():
            one.check_nothing_is_left()


def test_the_death_of_the_reaper_harms_no_worker() -> None:
    with agent("run", "no-cgroup") as one:
        os.kill(one.facts["reaper"], signal.SIGKILL)
        assert ready(one.watched[-1])
        one.die("SIGINT")  # the agent ends by itself, and sweeps
        one.wait_for_all()
        one.check_nothing_is_left()
