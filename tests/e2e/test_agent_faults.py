"""Jobs of several agents in which something goes wrong: workers, agents, and signals."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.jobs import Bell, Door, Job, JobNode
from tests.e2e.rendezvous_nodes import BRIEF

C10D = pytest.mark.parametrize("backend", ["c10d"])

# Workers fail.


@C10D
def test_after_a_failure_no_node_waits_at_the_exit(job: Job) -> None:
    nodes = [
        job.start(
            "fail_on_odd_ranks_or_stay",
            workers=2,
            exit_barrier_timeout=300,
            monitor_interval=0.5,
            shutdown_timeout=60,
        )
        for _ in range(2)
    ]
    for node in nodes:
        said = node.raised("WorkersFailed", 1)
        assert {rank for rank, _, _ in said["failures"]} <= {1, 3}
        assert "WorkersFinished" not in [one["event"] for one in node.said]
    first_causes = [node.hear("JobFailed")["reason"] for node in nodes]
    assert all("sad because it must" in reason for reason in first_causes)


def test_a_node_that_waits_at_the_exit_is_told_of_a_failure(job: Job, tmp_path: Path) -> None:
    door = Door(tmp_path / "door")
    done = job.start("return_after", "", exit_barrier_timeout=300)
    late = job.start("fail_after", door.path, exit_barrier_timeout=300)
    done.hear("WorkersFinished")
    door.open()
    for node in (done, late):
        [[_, code, message]] = node.raised("WorkersFailed", 1)["failures"]
        assert (code, message) == (1, "RuntimeError: too late")


# Agents are killed.


def test_a_killed_agent_is_replaced(job: Job, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with Bell(tmp_path / "bell") as bell:

        def start() -> JobNode:
            return job.start(
                "sum_of_ranks_after",
                *(bell.path, str(flag)),
                workers=2,
                max_restarts=2,
                rdzv=job.place.mortal,
            )

        stays, killed = start(), start()
        bell.rung_by_all(4)
        flag.touch()
        killed.kill()
        new = start()
        results = stays.returned() | new.returned()
    assert results == dict.fromkeys(range(4), 6)
    assert killed.process.returncode == -signal.SIGKILL
    # A node that is lost is no failure of the workers: no restart was spent on it.
    starts = [said for said in stays.said if said["event"] == "WorkersStarted"]
    assert [said["restarts"] for said in starts] == [0] * len(starts)
    assert len(starts) > 1


def test_the_others_go_on_without_a_killed_agent(job: Job, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with Bell(tmp_path / "bell") as bell:
        stays, killed = (
            job.start(
                "sum_of_ranks_after",
                *(bell.path, str(flag)),
                nodes=(1, 2),
                workers=2,
                max_restarts=2,
                rdzv=job.place.mortal,
            )
            for _ in range(2)
        )
        bell.rung_by_all(4)
        flag.touch()
        killed.kill()
        assert stays.returned() == {0: 1, 1: 1}
    # The last of its rounds was without the other one.
    starts = [said for said in stays.said if said["event"] == "WorkersStarted"]
    assert [said["world_size"] for said in starts][-2:] == [4, 2]
    assert killed.process.returncode == -signal.SIGKILL


# Agents are told to end, and fail themselves.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_agent_and_not_the_run(
    job: Job, tmp_path: Path, number: signal.Signals
) -> None:
    with Bell(tmp_path / "bell") as bell:
        told = job.start("stay", bell.path, nodes=(1, 1))
        bell.rung_by_all(1)
        spare = job.start("ten_and_rank", nodes=(1, 1))
        told.hear_waiting("1 waiting")
        told.process.send_signal(number)
        # The run goes on: the node that waited joins.
        assert spare.returned() == {0: 10}
        told.raised("Signalled", 128 + number)
    assert told.hear("JobEnded")["ending"] == "signalled"
    assert "JobFailed" not in [said["event"] for said in told.said]


def test_an_error_of_an_agents_own_ends_the_run_for_all(job: Job, tmp_path: Path) -> None:
    door = Door(tmp_path / "door")
    broken = job.start("return_after", door.path, nodes=(1, 1), break_in="finished")
    broken.started()
    spare = job.start("ten_and_rank", nodes=(1, 1))
    broken.hear_waiting("1 waiting")
    door.open()
    said = spare.raised("WorkersFailed", 1)
    assert "an agent failed" in said["text"]
    assert "WorkersStarted" not in [one["event"] for one in spare.said]
    # Its own error comes back as it was, and is told of once.
    broken.raised("Unexpected", 1)
    [end] = [one for one in broken.said if one["event"] in ("JobFailed", "JobEnded")]
    assert (end["event"], end["ending"]) == ("JobFailed", "broken")


@C10D
def test_a_node_that_loses_the_store_at_the_exit_does_not_report_success(
    job: Job, tmp_path: Path
) -> None:
    door = Door(tmp_path / "door")
    host = job.start("return_after", door.path)
    done = job.start("return_after", "", exit_barrier_timeout=300, rdzv=BRIEF)
    done.hear("WorkersFinished")
    host.kill()
    assert done.raised("RendezvousLost", 1)["text"]
    assert done.hear("JobFailed")["ending"] == "broken"


# Agents are stopped.

LEASE = {"keep_alive_interval": "0.2", "keep_alive_max_attempt": "15"}


@C10D
def test_workers_of_a_frozen_agent_are_gone_before_the_next_round(job: Job, tmp_path: Path) -> None:
    beats = tmp_path / "beats"

    def start() -> JobNode:
        given = (str(beats), bell.path)
        rdzv = LEASE | {"last_call_timeout": "1"}
        return job.start("beat", *given, nodes=(1, 2), rdzv=rdzv, shutdown_timeout=0.2)

    with Bell(tmp_path / "bell") as bell:
        host, frozen = start(), start()
        pids = {node: node.started(world_size=2)["pids"][0] for node in (host, frozen)}
        bell.rung_by_all(2)
        before = _beating(tmp_path)
        frozen.stop()
        bell.rung_by_all(1)
        assert _has_ended(pids[frozen])
    (later,) = _beating(tmp_path) - before
    last_before = _moments(tmp_path / f"beats.{pids[frozen]}")[-1]
    assert last_before < _moments(tmp_path / f"beats.{later}")[0]


def _has_ended(pid: int) -> bool:
    """Say whether a process has ended; its parent, which is frozen, cannot reap it."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "Z"


def _beating(folder: Path) -> set[int]:
    """Return the workers that have begun to beat; a node may have been alone in a round before."""
    return {int(one.suffix[1:]) for one in folder.glob("beats.*")}


def _moments(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split("\n")[:-1]]  # the last may be cut
