"""Jobs of several agents, each a process of its own: sums, ranks and roles, and a joint end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.entrypoints import SUMMED
from tests.e2e.jobs import Door, Job, JobNode

C10D = pytest.mark.parametrize("backend", ["c10d"])


def results_of(nodes: list[JobNode]) -> dict[int, object]:
    """Wait for the end of all; return what their workers returned, by rank, each of them once."""
    found = [(rank, result) for node in nodes for rank, result in node.returned().items()]
    assert len(found) == len(dict(found))
    return dict(found)


# Sums by gloo.


@pytest.mark.parametrize(
    ("backend", "workers"), [("c10d", 4), ("etcd", 2), ("etcd-v2", 2)]
)  # the count matters once; torch is expensive to start
def test_a_sum_over_equal_nodes(job: Job, tmp_path: Path, workers: int) -> None:
    logs, output = tmp_path / "logs", tmp_path / "output"
    nodes = [
        job.start(
            "sum_of_ranks",
            role="sum",
            workers=workers,
            logs=(str(logs), None),
            output=output,
        )
        for _ in range(2)
    ]
    size = 2 * workers
    assert results_of(nodes) == dict.fromkeys(range(size), sum(range(size)))
    # Each worker's line is on the console, with its role and local rank, and in its file.
    shown = [line for line in output.read_text().splitlines() if SUMMED in line]
    assert sorted(shown) == sorted(f"[sum{n}]:{SUMMED}" for n in [*range(workers)] * 2)
    files = [path.read_text() for path in logs.glob("*/attempt_0/*/stdout.log")]
    assert files == [f"{SUMMED}\n"] * size


@C10D
def test_a_prefix_of_ones_own_before_each_line(job: Job, tmp_path: Path) -> None:
    output = tmp_path / "output"
    prefix = "[${role_name}-${local_rank}:${rank}]:"
    nodes = [
        job.start("sum_of_ranks", role="sum", logs=(str(tmp_path), prefix), output=output)
        for _ in range(2)
    ]
    assert results_of(nodes) == {0: 1, 1: 1}
    shown = re.findall(rf"^(.*){SUMMED}$", output.read_text(), re.MULTILINE)
    assert sorted(shown) == ["[sum-0:0]:", "[sum-0:1]:"]


def test_a_sum_over_nodes_of_different_size(job: Job) -> None:
    nodes = [
        job.start("sum_of_ranks", nodes=(3, 3), role="sum", workers=workers)
        for workers in (1, 2, 3)
    ]
    assert results_of(nodes) == dict.fromkeys(range(6), 15)


# Ranks.


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"master": [8], "trainer": [1, 2, 3, 4], "ps": [5, 2]}, id="different"),
        pytest.param({"master": [1], "trainer": [4, 4, 4, 4], "ps": [3, 3]}, id="equal"),
    ],
)
def test_ranks_within_roles(job: Job, sizes: dict[str, list[int]]) -> None:
    started = [
        (role, workers, job.start("places", nodes=(7, 7), role=role, workers=workers))
        for role, all_workers in sizes.items()
        for workers in all_workers
    ]
    world_size = sum(map(sum, sizes.values()))
    ranks: list[int] = []
    role_ranks: dict[str, list[int]] = {role: [] for role in sizes}
    by_group: dict[int, tuple[int, str, int]] = {}
    for role, workers, node in started:
        results = [result for _, result in sorted(node.returned().items())]
        first = results[0]
        # The ranks of a node follow one another, in the world and in its role.
        assert results == [
            {
                "role": role,
                "RANK": first["RANK"] + local_rank,
                "ROLE_RANK": first["ROLE_RANK"] + local_rank,
                "GROUP_RANK": first["GROUP_RANK"],
                "ROLE_WORLD_SIZE": sum(sizes[role]),
                "WORLD_SIZE": world_size,
            }
            for local_rank in range(workers)
        ]
        ranks += [result["RANK"] for result in results]
        role_ranks[role] += [result["ROLE_RANK"] for result in results]
        by_group[first["GROUP_RANK"]] = (first["RANK"], role, first["ROLE_RANK"])
    assert sorted(ranks) == list(range(world_size))
    assert {role: sorted(found) for role, found in role_ranks.items()} == {
        role: list(range(sum(workers))) for role, workers in sizes.items()
    }
    # And a node of higher rank has workers of higher ranks, in the world and in its role.
    in_order = [by_group[group] for group in range(7)]
    assert in_order == sorted(in_order, key=lambda place: place[0])
    for role in sizes:
        of_role = [first_of_role for _, its, first_of_role in in_order if its == role]
        assert of_role == sorted(of_role)


# The end: workers that finish apart.


def test_workers_may_finish_apart(job: Job, tmp_path: Path) -> None:
    door = Door(tmp_path / "door")
    early = job.start("return_after", "", exit_barrier_timeout=60)
    late = job.start("return_after", door.path, exit_barrier_timeout=60)
    early.hear("WorkersFinished")
    door.open()
    assert results_of([early, late]) == {0: 0, 1: 1}
    for node in (early, late):  # each has waited for the other, and got its answer
        assert node.hear("JobEnded")["reason"] == "all workers are done"


def test_a_node_that_skips_the_exit_barrier_harms_nothing(job: Job, tmp_path: Path) -> None:
    door = Door(tmp_path / "door")
    late = job.start("return_after", door.path, exit_barrier_timeout=0)
    late.hear("started")
    early = job.start("return_after", "", exit_barrier_timeout=0)
    results = early.returned()
    assert results == {rank: rank for rank in results}
    # It is gone for good, and the other one's worker still runs.
    assert "the exit barrier" in early.hear("JobEnded")["reason"]
    assert "WorkersFinished" not in [said["event"] for said in late.said]
    door.open()
    assert results | late.returned() == {0: 0, 1: 1}


# Calls between workers.


def test_workers_of_two_nodes_call_each_other(job: Job) -> None:
    master = job.start("call_worker", "hello world", role="master")
    worker = job.start("be_called", role="worker")
    assert list(master.returned().values()) == ["hello world from worker"]
    assert list(worker.returned().values()) == [None]
