"""Several agents of torch's kind, over every backend: ranks, ends, failures, and killed agents."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import Std

from holdfast.rendezvous.port import HeldPort
from tests.e2e import entrypoints
from tests.e2e.jobs import Bell, Door
from tests.e2e.rendezvous_nodes import FOREVER
from tests.e2e.torch_compat import workers
from tests.e2e.torch_compat.agents import Node

Job = Callable[..., Any]
C10D = pytest.mark.parametrize("backend", ["c10d"])


@pytest.fixture(scope="module", autouse=True)
def _forking(_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from tests.e2e.torch_compat.processes import forking

    with forking(tmp_path_factory.mktemp("forking")):
        yield


@pytest.fixture
def job(backend: str, etcd: str, log_dir: str) -> Iterator[Job]:
    """Start agents of a job: `job(nodes, **more)` is one that waits for so many."""
    from tests.e2e.torch_compat.processes import Agents

    held = HeldPort("127.0.0.1")
    endpoint = f"127.0.0.1:{held.port}" if backend == "c10d" else etcd
    agents = Agents(Node(entrypoints.nothing, 1, backend, endpoint, log_dir))

    def start(nodes: tuple[int, int], **more: Any) -> Any:
        return agents.start(nodes=nodes, **more)

    yield start
    agents.close()
    held.close()


@pytest.fixture
def missed_soon(backend: str) -> dict[str, str]:
    """The configuration of nodes that are to be missed when they are killed, and not before.

    With c10d their connections end. Leases of etcd are for seconds: no machine is that slow.
    """
    if backend == "c10d":
        return FOREVER
    return {"keep_alive_interval": "0.5", "keep_alive_max_attempt": "12"}


# Ranks.


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2)])  # each worker imports torch: few are enough
def test_a_sum_over_nodes(job: Job, sizes: tuple[int, ...]) -> None:
    total = sum(sizes)
    nodes = [
        job((len(sizes), len(sizes)), entrypoint=entrypoints.sum_of_ranks, workers=size, role="sum")
        for size in sizes
    ]
    results: dict[int, int] = {}
    for node in nodes:
        results |= node.returned()
    assert results == dict.fromkeys(range(total), sum(range(total)))


@C10D
def test_a_prefix_of_ones_own_before_each_line(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    node = job(
        (1, 1),
        entrypoint=entrypoints.sum_of_ranks,
        workers=2,
        role="sum",
        tee=Std.ALL,
        prefix="[${role_name}-${local_rank}:${rank}]:",
        output=out,
    )
    node.returned()
    lines = [line for line in out.read_text().splitlines() if entrypoints.SUMMED in line]
    assert sorted(lines) == [f"[sum-{rank}:{rank}]:{entrypoints.SUMMED}" for rank in (0, 1)]


@pytest.mark.parametrize(
    "sizes",
    [
        (("master", 3), ("trainer", 1), ("trainer", 2), ("ps", 2), ("ps", 1)),
        (("master", 1), ("trainer", 2), ("trainer", 2), ("ps", 1), ("ps", 1)),
    ],
    ids=["different", "equal"],
)
def test_ranks_within_roles(job: Job, sizes: tuple[tuple[str, int], ...]) -> None:
    count = len(sizes)
    nodes = [
        job((count, count), entrypoint=entrypoints.places, role=role, workers=number)
        for role, number in sizes
    ]
    returned = [node.returned() for node in nodes]
    seen = [one for results in returned for one in results.values()]
    world = sum(number for _, number in sizes)
    assert sorted(one["RANK"] for one in seen) == list(range(world))
    assert {one["WORLD_SIZE"] for one in seen} == {world}
    for role in {role for role, _ in sizes}:
        size = sum(number for name, number in sizes if name == role)
        those = [one for one in seen if one["role"] == role]
        assert sorted(one["ROLE_RANK"] for one in those) == list(range(size))
        assert {one["ROLE_WORLD_SIZE"] for one in those} == {size}
    for results in returned:  # those of a node follow one another, in both
        for name in ("RANK", "ROLE_RANK"):
            ranks = sorted(one[name] for one in results.values())
            assert ranks == list(range(ranks[0], ranks[0] + len(ranks)))


def test_workers_of_two_nodes_call_each_other(job: Job) -> None:
    master = job((2, 2), entrypoint=workers.call_worker, args=("hello world",), role="master")
    worker = job((2, 2), entrypoint=workers.be_called, role="worker")
    assert list(master.returned().values()) == ["hello world from worker"]
    assert list(worker.returned().values()) == [None]


# Ends.


def test_workers_may_finish_apart(job: Job, tmp_path: Path) -> None:
    door = Door(tmp_path / "door")
    done = job((2, 2), entrypoint=entrypoints.return_after, args=("",), exit_barrier_s=300)
    late = job((2, 2), entrypoint=entrypoints.return_after, args=(door.path,), exit_barrier_s=300)
    door.open()
    results = done.returned() | late.returned()
    assert results == {0: 0, 1: 1}


def test_a_node_that_skips_the_exit_barrier_harms_nothing(job: Job, tmp_path: Path) -> None:
    door = Door(tmp_path / "door")
    late = job((2, 2), entrypoint=entrypoints.return_after, args=(door.path,), exit_barrier_s=0)
    done = job((2, 2), entrypoint=entrypoints.return_after, args=("",), exit_barrier_s=0)
    results = done.returned()
    door.open()
    assert results | late.returned() == {0: 0, 1: 1}


# Failures.


@C10D
def test_after_a_failure_no_node_waits_at_the_exit(job: Job) -> None:
    nodes = [
        job((2, 2), entrypoint=entrypoints.fail_on_odd_ranks_or_stay, workers=2, exit_barrier_s=300)
        for _ in range(2)
    ]
    said = [node._ended() for node in nodes]
    assert {kind for kind, _ in said} <= {"ChildFailedError", "RendezvousClosedError"}
    assert all("sad because it must" in what for _, what in said)


def test_all_nodes_hear_of_a_failure(job: Job, tmp_path: Path) -> None:
    with Bell(tmp_path / "bell") as bell:
        stays = job((2, 2), entrypoint=entrypoints.stay, args=(bell.path,))
        fails = job((2, 2), entrypoint=entrypoints.fail)
        assert "sad because it must" in fails.raised("ChildFailedError")
        assert "sad because it must" in stays.raised("RendezvousClosedError")


# Agents that are killed, or told to end.


def test_a_killed_agent_is_replaced(job: Job, tmp_path: Path, missed_soon: dict[str, str]) -> None:
    flag = tmp_path / "flag"
    with Bell(tmp_path / "bell") as bell:

        def start() -> Any:
            return job(
                (2, 2),
                entrypoint=workers.world_size_after,
                args=(bell.path, str(flag)),
                workers=2,
                max_restarts=2,
                rdzv=missed_soon,
            )

        stays, killed = start(), start()
        bell.rung_by_all(4)
        flag.touch()
        killed.kill()
        new = start()
        assert stays.returned() | new.returned() == dict.fromkeys(range(4), 4)


def test_the_others_go_on_without_a_killed_agent(
    job: Job, tmp_path: Path, missed_soon: dict[str, str]
) -> None:
    flag = tmp_path / "flag"
    with Bell(tmp_path / "bell") as bell:
        stays, killed = (
            job(
                (1, 2),
                entrypoint=workers.world_size_after,
                args=(bell.path, str(flag)),
                workers=2,
                max_restarts=2,
                rdzv=missed_soon,
            )
            for _ in range(2)
        )
        bell.rung_by_all(4)
        flag.touch()
        killed.kill()
        assert stays.returned() == {0: 2, 1: 2}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_agent_and_not_the_run(
    job: Job, tmp_path: Path, number: signal.Signals
) -> None:
    flag = tmp_path / "flag"
    with Bell(tmp_path / "bell") as bell:
        stays, told = (
            job(
                (1, 2),
                entrypoint=workers.world_size_after,
                args=(bell.path, str(flag)),
                rdzv={"keep_alive_interval": 600},
            )
            for _ in range(2)
        )
        bell.rung_by_all(2)
        flag.touch()
        os.kill(told.process.pid, number)
        told.raised("SignalException")
        assert stays.returned() == {0: 1}
