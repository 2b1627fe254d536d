"""`holdfast ps`, `status`, `stop` and `events` against real jobs."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.rendezvous.port import HeldPort
from tests.e2e.steered import HOLDFAST, LIMIT_S, SteeredJobs, steered_jobs
from tests.waiting import until

ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[SteeredJobs]:
    with steered_jobs(tmp_path) as made:
        yield made


@pytest.fixture
def pair(jobs: SteeredJobs) -> Iterator[list[subprocess.Popen[str]]]:
    """Two agents of one job, in its second round: rank 1 failed in the first."""
    held = HeldPort("127.0.0.1")
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{held.port}", "--rdzv-id=job7"]
    flags = ["--nnodes=2", "--nproc-per-node=2", "--max-restarts=2", jobs.script()]
    yield [jobs.start(*meet, f"--rdzv-conf=is_host={host}", *flags) for host in ("true", "false")]
    held.close()


def test_a_job_of_two_agents_is_seen_and_stopped(
    jobs: SteeredJobs, pair: list[subprocess.Popen[str]]
) -> None:
    found = jobs.running("job7", round_=2, agents=2)
    assert (found["nodes"], found["workers"], found["round"]) == (2, 4, 2)
    assert (found["restarts_used"], found["restarts_allowed"]) == (1, 2)
    assert {agent["pid"] for agent in found["agents"]} == {one.pid for one in pair}
    ranks = {worker["rank"] for agent in found["agents"] for worker in agent["workers"]}
    assert ranks == {0, 1, 2, 3}

    listed = jobs.call("ps").stdout.splitlines()
    assert re.match(r"job7  running  2      4        1/2       \d", listed[1])
    shown = jobs.call("status").stdout
    assert "restarts  1 of 2 used, 1 left\n          1 by rank 1: ValueError\n" in shown
    assert len(re.findall(r"^[01]     \S+ +[0-3]     \d+ +running$", shown, re.MULTILINE)) == 4
    assert "WorkerFailed  rank 1 (default) on" in shown

    stopped = jobs.call("stop", "job7", "--grace", "5")
    assert (stopped.returncode, stopped.stdout) == (0, "job job7: stopped\n"), stopped.stderr
    for one in pair:
        _, err = one.communicate(timeout=LIMIT_S)
        assert one.returncode == 79
        last = err.splitlines()[-1]
        assert last.endswith(f"1 restart (rank 1: ValueError): stopped by user {ME}")
    assert jobs.call("ps").stdout.count("\n") == 1


def test_events_are_told_and_followed_to_the_end(jobs: SteeredJobs) -> None:
    one = jobs.start("--nproc-per-node=2", "--max-restarts=1", jobs.script())
    jobs.running(round_=2)
    told = [json.loads(line) for line in jobs.call("events", "--json").stdout.splitlines()]
    names = ["WorkersStarted", "WorkerFailed", "WorkersStopping", "WorkersRestarting"]
    assert [event["event"] for event in told] == [*names, "WorkersStarted"]
    assert [event["number"] for event in told] == [1, 2, 3, 4, 5]
    assert all(event["host"] == os.uname().nodename for event in told)
    with subprocess.Popen(
        [*HOLDFAST, "events", "--follow"],
        env=jobs.variables,
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        try:
            assert follower.stdout is not None
            lines = [follower.stdout.readline() for _ in range(5)]
            assert "WorkerFailed  rank 1 (default) on" in lines[1]
            assert jobs.call("stop").returncode == 0
            rest, _ = follower.communicate(timeout=LIMIT_S)
        finally:
            follower.kill()
    kinds = [line.split("  ")[2] for line in rest.splitlines()]
    assert kinds == ["StopRequested", "WorkersStopping", "JobEnded"]
    assert follower.returncode == 0
    assert one.wait(LIMIT_S) == 79


def test_which_job_is_meant(jobs: SteeredJobs) -> None:
    script = jobs.script()
    first, second = (jobs.start("--rdzv-id=twin", script) for _ in range(2))
    pids = [first.pid, second.pid]
    for pid in pids:
        jobs.running(f"twin@{pid}")
    ways = {f"twin@{a} or twin@{b}" for a, b in (pids, pids[::-1])}
    for words in (["status"], ["stop"], ["events"], ["status", "twin"], ["stop", "twin"]):
        done = jobs.call(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert any(done.stderr.endswith(f"{way}\n") for way in ways), done.stderr
    done = jobs.call("stop", "nobody")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("holdfast: job 'nobody': no such job here; there is twin@")
    assert jobs.call("stop", f"twin@{first.pid}").returncode == 0
    assert first.wait(LIMIT_S) == 79
    assert second.poll() is None
    assert jobs.call("stop").returncode == 0


def test_an_agent_that_does_not_answer_is_named_and_a_dead_one_is_forgotten(
    jobs: SteeredJobs, pair: list[subprocess.Popen[str]]
) -> None:
    jobs.running("job7", round_=2, agents=2)
    host, other = pair
    other.send_signal(signal.SIGSTOP)
    try:
        done = jobs.call("status", "job7")
        assert done.returncode == 75
        line = f"no answer: the agent with process {other.pid} does not answer: is it stopped?"
        assert line in done.stdout.splitlines()
        assert jobs.call("ps").returncode == 75
    finally:
        other.kill()
        other.wait(LIMIT_S)
    found = jobs.status("job7")
    assert [agent["pid"] for agent in found["agents"]] == [host.pid]
    assert found["no_answer"] == []
    host.kill()
    host.wait(LIMIT_S)
    assert jobs.call("ps").stdout.count("\n") == 1
    assert not list((jobs.folder / "home").rglob("*.sock"))


def test_a_spare_is_shown_and_stopped_with_the_job(jobs: SteeredJobs, tmp_path: Path) -> None:
    meet = ["--rdzv-backend=file", f"--rdzv-endpoint={tmp_path / 'store'}", "--rdzv-id=job8"]
    script = jobs.script("import signal; signal.pause()")
    working = jobs.start(*meet, "--nnodes=1", script)
    jobs.running("job8")
    spare = jobs.start(*meet, "--nnodes=1", script)

    def is_shown() -> bool:
        return bool(jobs.status("job8").get("spares") == 1)

    until(is_shown, every_s=0.05)
    assert jobs.call("stop", "job8").returncode == 0
    for one in (working, spare):
        _, err = one.communicate(timeout=LIMIT_S)
        assert (one.returncode, f"stopped by user {ME}" in err) == (79, True), err


def test_watching_ends_with_the_job(jobs: SteeredJobs) -> None:
    one = jobs.start(jobs.script())
    jobs.running()
    with subprocess.Popen(
        [*HOLDFAST, "status", "-w"], env=jobs.variables, stdout=subprocess.PIPE, text=True
    ) as watcher:
        try:
            assert watcher.stdout is not None
            assert watcher.stdout.readline().startswith("job       ")
            assert jobs.call("stop").returncode == 0
            watcher.communicate(timeout=LIMIT_S)
        finally:
            watcher.kill()
    assert watcher.returncode == 0
    assert one.wait(LIMIT_S) == 79
