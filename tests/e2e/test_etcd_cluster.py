"""Three etcd members, one or all of them killed while clients write: nothing that counts is lost.

Every client adds to a counter of its own and to one that all share, appends to a log, and keeps a
lease alive. What was acknowledged must be there in the end, exactly once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from holdfast.errors import StoreUnavailable, TimeoutExpired
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.etcd.v3.store import EtcdStore
from holdfast.store.ops import Lease

TIMEOUT_S = 60.0
CLIENTS = 4
LEASE_S = 10.0
WRITES_BEFORE, WRITES_AFTER = 15, 25


@pytest.fixture
def cluster() -> Iterator[LocalEtcdServer]:
    with LocalEtcdServer(3) as server:
        yield server


class Client:
    """Writes without a pause until it is told to stop, and counts what was acknowledged."""

    def __init__(self, server: LocalEtcdServer, prefix: str, number: int) -> None:
        self.store = EtcdStore(server.addresses, prefix)
        self.name = f"client-{number}"
        self.acknowledged = 0
        self.progress = threading.Condition()
        self.stop = threading.Event()

    def write(self) -> None:
        """Write; every operation must succeed, since one member may always be away."""
        try:
            self._write()
        finally:
            with self.progress:
                self.stop.set()
                self.progress.notify_all()

    def _write(self) -> None:
        while not self.stop.is_set():
            mine = self.store.add(self.name, timeout=TIMEOUT_S)
            assert mine == self.acknowledged + 1
            self.store.add("shared", timeout=TIMEOUT_S)
            self.store.append("log", b"<%s>" % self.name.encode(), timeout=TIMEOUT_S)
            self.store.set(f"{self.name}/{mine}", b"", timeout=TIMEOUT_S)
            with self.progress:
                self.acknowledged = mine
                self.progress.notify_all()

    def keep(self, lease: Lease) -> None:
        """Keep a lease alive; LeaseLost would end the test."""
        while not self.stop.wait(lease.ttl / 5):
            assert self.store.keep_lease(lease, timeout=TIMEOUT_S) == lease.ttl

    def await_more(self, writes: int) -> None:
        """Wait until so many more writes are acknowledged."""
        with self.progress:
            goal = self.acknowledged + writes
            assert self.progress.wait_for(
                lambda: self.acknowledged >= goal or self.stop.is_set(), TIMEOUT_S
            )


def run_under_load(
    server: LocalEtcdServer, prefix: str, fault: Callable[[], None], mend: Callable[[], None]
) -> None:
    """Let clients write before, during and after a fault, and check what is there in the end."""
    clients = [Client(server, prefix, number) for number in range(CLIENTS)]
    with ExitStack() as stack, ThreadPoolExecutor(2 * CLIENTS) as pool:
        for client in clients:
            stack.enter_context(client.store)
        leases = [client.store.grant_lease(LEASE_S) for client in clients]
        for client, lease in zip(clients, leases, strict=True):
            client.store.set(f"alive/{client.name}", b"", lease=lease)
        tasks = [pool.submit(client.write) for client in clients]
        tasks += [pool.submit(c.keep, lease) for c, lease in zip(clients, leases, strict=True)]
        try:
            for step, writes in ((fault, WRITES_BEFORE), (mend, WRITES_AFTER), (None, 5)):
                for client in clients:
                    client.await_more(writes)
                if step is not None:
                    step()
        finally:
            for client in clients:
                client.stop.set()
        for task in tasks:
            task.result(TIMEOUT_S)
        check(clients)


def check(clients: list[Client]) -> None:
    store = clients[0].store
    total = sum(client.acknowledged for client in clients)
    assert store.get("shared") == b"%d" % total
    log = store.get("log") or b""
    for client in clients:
        done = client.acknowledged
        assert store.get(client.name) == b"%d" % done
        assert log.count(b"<%s>" % client.name.encode()) == done
        assert store.count(f"{client.name}/") == done
    assert store.count("alive/") == CLIENTS


def test_a_killed_follower_loses_nothing(cluster: LocalEtcdServer) -> None:
    follower = (cluster.leader() + 1) % 3
    run_under_load(
        cluster, "follower", lambda: cluster.kill(follower), lambda: cluster.restart(follower)
    )


def test_a_killed_leader_loses_nothing(cluster: LocalEtcdServer) -> None:
    leader = cluster.leader()
    run_under_load(cluster, "leader", lambda: cluster.kill(leader), lambda: cluster.restart(leader))
    assert cluster.leader() in range(3)


def test_clients_come_back_after_all_members_restart(cluster: LocalEtcdServer) -> None:
    def kill_all() -> None:
        for member in range(3):
            cluster.kill(member)

    with EtcdStore(cluster.addresses, "all") as store, ThreadPoolExecutor() as pool:
        store.multi_set({"k": b"1", "gone": b""})
        watch = store.watch("", prefix=True)
        assert {watch.next(TIMEOUT_S).key for _ in range(2)} == {"k", "gone"}
        waiting = pool.submit(store.wait, ["k", "new"], timeout=TIMEOUT_S)
        kill_all()
        with pytest.raises((StoreUnavailable, TimeoutExpired)):
            store.get("k", timeout=0.2)
        pending = pool.submit(store.add, "k", timeout=TIMEOUT_S)
        cluster.restart(0, 1, 2)
        assert pending.result(TIMEOUT_S) == 2
        store.delete("gone")
        store.set("new", b"n")
        assert waiting.result(TIMEOUT_S) == [b"2", b"n"]
        seen: dict[str, bytes | None] = {}
        with watch:
            while seen != {"k": b"2", "gone": None, "new": b"n"}:
                change = watch.next(TIMEOUT_S)
                seen[change.key] = change.value
