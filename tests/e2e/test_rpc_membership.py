"""Members of a world of RPC: workers that come, fall silent, are cut off, and come again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.clock import Deadline
from holdfast.errors import PeerLost, UsageError
from holdfast.launch.config import LaunchConfig
from holdfast.rpc.api import init_rpc, remote, rpc_async, rpc_sync, shutdown
from holdfast.rpc.rref.rref import RRef
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.testing.rpcworld import run_workers
from tests.unit.rpc.api_worker import identify, stay, visit, visit_from, visited
from tests.unit.rpc.api_world import Worker, free_port, workers
from tests.waiting import until

SOON = 60.0


@pytest.fixture(autouse=True)
def nobody_was_here() -> None:
    visited().clear()


def until_reached(true: Callable[[], object]) -> None:
    """Wait until a condition holds; it does not yet while a worker is lost or unknown."""

    def holds() -> bool:
        try:
            return bool(true())
        except (PeerLost, UsageError):
            return False

    until(holds)


def hop(names: list[str]) -> int:
    """Call one through the other; return how many there were."""
    return 1 + int(rpc_sync(names[0], hop, args=(names[1:],))) if names else 0


def hop_through_all(rank: int, workers: int) -> int:
    names = [f"worker{(rank + step) % workers}" for step in range(workers)]
    return hop(names) + hop(names[::-1])


def test_when_all_have_met_each_worker_reaches_each() -> None:
    """DI-4: the first thing that each does is to call all, each by way of the one before."""
    assert run_workers(hop_through_all, 8, workers=8) == dict.fromkeys(range(8), 16)


def test_one_that_comes_again_is_reached_by_all_and_reaches_all() -> None:
    with holdfast.serve_store() as server, workers() as started:
        where = server.endpoint
        for rank in (1, 2):
            started.append(Worker(f"w{rank}", rank=rank, world_size=3, init_method=where))
        with holdfast.open_store(where) as store:
            init_rpc("w0", rank=0, world_size=3, store=store)
            before = rpc_sync("w1", identify)[2]
            assert visit_from("w2", "w1") == 1
            waiting = rpc_async("w1", stay)
            started[0].signal(signal.SIGKILL)
            with pytest.raises(PeerLost):
                waiting.wait(SOON)
            started.append(Worker("w1", rank=1, world_size=3, init_method=where))
            assert started[-1].hear() == "ready"  # no other worker has to be started again
            until_reached(lambda: rpc_sync("w1", identify)[2] != before)
            until_reached(lambda: visit_from("w2", "w1"))
            assert visit_from("w1", "w2") == visit_from("w1", "w0") == 1
            for worker in started[1:]:
                worker.let_end()
            assert shutdown() == ()


def test_a_new_worker_is_known_to_the_workers_that_it_calls() -> None:
    """It calls one that may not have heard of it, which calls it back at once."""
    with holdfast.serve_store() as server, workers() as started:
        init_rpc("w0", init_method=server.endpoint, rank=100)
        for number in range(5):
            started.append(Worker(f"n{number}", init_method=server.endpoint))
            assert started[-1].hear() == "ready"
            started[-1].tell("w0")
            assert started[-1].hear() == number + 1
            assert rpc_sync(f"n{number}", visit_from, args=("w0", f"n{number}")) == 1


def test_a_worker_that_was_silent_too_long_is_lost_and_ignored_from_then_on() -> None:
    """AN-4, by workers that knew it and by workers that came later."""
    with holdfast.serve_store() as server, workers() as started:
        where = server.endpoint
        init_rpc("w0", rank=9, init_method=where)
        started.append(Worker("w1", rank=1, init_method=where, keep_alive=5.0))
        assert started[0].hear() == "ready"
        started[0].tell("w0")
        assert started[0].hear() == 1  # so that it has a connection
        waiting = rpc_async("w1", stay)
        started[0].signal(signal.SIGSTOP)
        with pytest.raises(PeerLost, match="Connection closed by peer"):
            waiting.wait(SOON)
        # A call that it makes before it knows, on a connection that it has.
        started[0].tell("w0")
        started.append(Worker("w2", rank=2, init_method=where))
        assert started[1].hear() == "ready"
        started[0].signal(signal.SIGCONT)
        kind, text = started[0].hear()
        assert (kind, "Connection" in text) == ("PeerLost", True)
        for name in ("w0", "w2"):
            deadline = Deadline.after(SOON)
            while True:  # until it has heard of the newcomer
                started[0].tell(name)
                kind, text = started[0].hear()
                if kind == "PeerLost":
                    break
                assert not deadline.passed()
            assert "the caller has been given up" in text
        assert (visited(), rpc_sync("w2", visited)) == (["w1"], [])
        started.append(Worker("w1", rank=1, init_method=where))  # its name is free
        assert started[-1].hear() == "ready"
        started[-1].tell("w2")
        assert started[-1].hear() == 1


@pytest.mark.parametrize("serves", [False, True])
@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)])
def test_workers_that_disagree_on_the_world_size_fail_at_once(
    serves: bool, ranks: tuple[int, int], tmp_path: Path
) -> None:
    """DI-7: both, long before a lease ends or their time is up, also if the store is one's own."""
    sizes = (2, 3)
    with workers() as started, free_port() as port:
        where = f"tcp://127.0.0.1:{port}" if serves else f"file://{tmp_path}/store"
        for rank in ranks:
            size = sizes[rank]
            place: dict[str, Any] = {"rank": rank, "world_size": size, "init_method": where}
            started.append(Worker(f"w{rank}", keep_alive=600.0, timeout=600.0, **place))
        for rank, worker in zip(ranks, started, strict=True):
            kind, text = worker.hear()
            other = WorkerInfo(f"w{1 - rank}", 1 - rank)
            expected = f"world_size {sizes[rank]}: {other} has world_size {sizes[1 - rank]}; "
            assert (kind, text[: len(expected)]) == ("UsageError", expected)


class TestTheEnd:
    """R1: it comes, and names the workers for which it stopped waiting."""

    @pytest.mark.parametrize(("keep_alive", "timeout"), [(600.0, 0.3), (5.0, SOON)])
    def test_with_a_peer_that_is_stopped(self, keep_alive: float, timeout: float) -> None:
        with holdfast.serve_store() as server, workers() as started:
            where = server.endpoint
            started.append(
                Worker("w1", rank=1, world_size=2, init_method=where, keep_alive=keep_alive)
            )
            with holdfast.open_store(where) as store:
                init_rpc("w0", rank=0, world_size=2, store=store)
                reference: RRef[dict[str, int]] = remote("w1", dict)
                assert reference.to_here() == {}
                started[0].signal(signal.SIGSTOP)
                assert shutdown(timeout=timeout) == ("w1",)

    def test_without_the_worker_that_serves_the_store(self) -> None:
        """Rank 0, and the store with it, is killed: the others end, and say that it was lost."""
        with workers() as started, free_port() as port:
            where = f"tcp://127.0.0.1:{port}"
            started.append(Worker("w0", rank=0, world_size=2, init_method=where))
            init_rpc("w1", rank=1, world_size=2, init_method=where)
            started[0].signal(signal.SIGKILL)
            with pytest.raises(PeerLost):
                rpc_sync("w0", stay)
            assert shutdown(timeout=0.3) == ("w0",)


def fail_once() -> list[int]:
    """In the first round one worker fails when all have met; in the second all is well."""
    rank = int(os.environ["RANK"])
    init_rpc(f"worker{rank}")
    found: list[int] = [rpc_sync(f"worker{other}", visit, args=(str(rank),)) for other in (0, 1)]
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if rank == 1:
            raise RuntimeError("once")
        stay()
    shutdown()
    return found


def test_the_next_round_of_a_job_is_another_world() -> None:
    config = LaunchConfig(1, 1, 2, rdzv_endpoint="localhost:0", max_restarts=1)
    results = holdfast.elastic_launch(config, fail_once)()
    assert sorted(results) == [0, 1]
    assert sorted(results[0] + results[1]) == [1, 1, 2, 2]
