"""Jobs beside a real etcd over its quota: it renews and ends leases, and takes no writes.

Leases last longer than any of these tests: a node that waited for one to end would be noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import StoreFull
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.open import open_store
from holdfast.store.store import Store
from tests.e2e.jobs import Door, Job, job_over

QUOTA_BYTES = 4 * 1024 * 1024
FULL = "etcdserver: mvcc: database space exceeded"


@pytest.fixture
def small_etcd(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEtcdServer]:
    monkeypatch.setenv("ETCD_QUOTA_BACKEND_BYTES", str(QUOTA_BYTES))
    with LocalEtcdServer() as server:
        yield server


@pytest.fixture
def job(small_etcd: LocalEtcdServer, tmp_path: Path) -> Iterator[Job]:
    with job_over("etcd", str(small_etcd.addresses[0]), tmp_path) as job:
        yield job


def fill(etcd: LocalEtcdServer) -> None:
    """Write until etcd takes no more, and says so without being asked again."""
    ballast = bytes(256 * 1024)

    def write(store: Store) -> None:
        for number in range(100):
            store.set(f"ballast-{number}", ballast, timeout=None)

    with open_store(etcd.endpoint) as store, pytest.raises(StoreFull, match=FULL) as caught:
        write(store)
    assert not caught.value.maybe_applied


def test_a_failure_ends_the_job_on_every_node(
    small_etcd: LocalEtcdServer, job: Job, tmp_path: Path
) -> None:
    """The node that has nothing to write hears of the end, too."""
    doors = [Door(tmp_path / f"door-{number}") for number in range(3)]
    fails = job.start("fail_after", doors[0].path, nodes=(3, 3))
    others = [job.start("return_after", door.path, nodes=(3, 3)) for door in doors[1:]]
    for node in (fails, *others):
        node.started()
    fill(small_etcd)
    doors[0].open()
    for node in (fails, *others):
        assert FULL in node.raised("RendezvousLost", 1)["text"]
    assert fails.hear("WorkerFailed")["reason"] == "RuntimeError: too late"


def test_workers_that_are_done_do_not_make_a_success(
    small_etcd: LocalEtcdServer, job: Job, tmp_path: Path
) -> None:
    doors = [Door(tmp_path / f"door-{number}") for number in range(2)]
    nodes = [job.start("return_after", door.path, exit_barrier_timeout=600) for door in doors]
    for node in nodes:
        node.started()
    fill(small_etcd)
    for door in doors:
        door.open()
    for node in nodes:
        assert FULL in node.raised("RendezvousLost", 1)["text"]


def test_nodes_that_come_to_a_full_etcd(small_etcd: LocalEtcdServer, job: Job) -> None:
    """Which of two errors they raise depends on whether etcd still lets them read."""
    fill(small_etcd)
    for node in [job.start("nothing") for _ in range(2)]:
        said = node.hear("raised")
        assert said["error"] in ("RendezvousLost", "StoreUnavailable")
        assert FULL in said["text"]
        node.ended(1)
