"""The store on etcd's v2 keys API: what the contract suite does not ask of every backend."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import PeerViolation, Step, StoreUnavailable, UsageError
from holdfast.net.address import Address
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.etcd.v2.store import EtcdV2Store
from holdfast.store.etcd.watch import EtcdWatch
from tests.unit.store.etcd.fakes import answering, http

TIMEOUT_S = 30.0


@pytest.fixture
def store(etcd_server: LocalEtcdServer, prefix: str) -> Iterator[EtcdV2Store]:
    with EtcdV2Store(etcd_server.addresses, prefix) as made:
        yield made


def test_making_one_does_no_io_and_the_endpoint_says_where(unused: Address) -> None:
    store = EtcdV2Store([unused], "jobs/1")
    assert store.endpoint == f"etcd-v2://{unused}/jobs/1"
    store.close()


def test_a_server_without_the_v2_api_is_said_in_one_line() -> None:
    with (
        answering(http(404, b"404 page not found\n")) as address,
        EtcdV2Store([address]) as store,
        pytest.raises(PeerViolation, match="v2 keys API .etcd before 3.6, .*--enable-v2") as caught,
    ):
        store.get("k", timeout=TIMEOUT_S)
    assert "\n" not in str(caught.value)


def test_an_absent_server_is_reported_with_the_step_and_the_address(unused: Address) -> None:
    with EtcdV2Store([unused]) as store:
        with pytest.raises(StoreUnavailable, match=f"cannot connect to {unused}") as caught:
            store.set("k", b"v", timeout=1.0)
        assert caught.value.step is Step.TCP
        assert not caught.value.maybe_applied
        with pytest.raises(StoreUnavailable):
            store.wait(["k"], timeout=1.0)


def test_one_member_that_answers_is_enough(
    etcd_server: LocalEtcdServer, unused: Address, prefix: str
) -> None:
    for seed in range(3):
        addresses = [unused, etcd_server.addresses[0]]
        with EtcdV2Store(addresses, prefix, rng=random.Random(seed)) as store:
            assert store.add("n") == seed + 1
            with store.watch("n") as watch:
                assert watch.next(TIMEOUT_S).value == b"%d" % (seed + 1)
                assert store.add("other") == seed + 1
                store.set("n", b"%d" % (seed + 1))
                assert watch.next(TIMEOUT_S).key == "n"


def test_a_prefix_below_another_is_a_space_of_its_own(
    store: EtcdV2Store, etcd_server: LocalEtcdServer, prefix: str
) -> None:
    with EtcdV2Store(etcd_server.addresses, f"{prefix}/sub") as below:
        below.set("k", b"v")
        assert store.count() == 0


def test_a_watch_survives_the_loss_of_its_connection(store: EtcdV2Store) -> None:
    with store.watch("k") as watch:
        for number in range(5):
            store.set("k", b"%d" % number)
            assert watch.next(TIMEOUT_S).value == b"%d" % number
            assert isinstance(watch, EtcdWatch)
            watch._source.shut()


def test_a_watch_whose_history_is_gone_reads_again(store: EtcdV2Store) -> None:
    store.set("gone", b"")
    with store.watch("", prefix=True) as watch:
        assert watch.next(TIMEOUT_S).key == "gone"
        assert isinstance(watch, EtcdWatch)
        watch._source.close()
        store.delete("gone")
        for number in range(1010):  # etcd remembers a thousand
            store.set("k", b"%d" % number)
        seen = {(change.key, change.value) for change in (watch.next(TIMEOUT_S) for _ in "12")}
    assert seen == {("gone", None), ("k", b"1009")}


def test_a_key_on_a_lease_is_followed(store: EtcdV2Store) -> None:
    lease = store.grant_lease(60)
    with store.watch("k") as watch:
        revision = store.set("k", b"v", lease=lease)
        assert watch.next(TIMEOUT_S) == ("k", b"v", revision)
        store.revoke_lease(lease)
        assert watch.next(TIMEOUT_S).value is None


def test_a_long_key_is_listed_watched_and_waited_for(store: EtcdV2Store) -> None:
    key = "é" * 4000
    with store.watch(key) as watch, ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.wait, [key], timeout=TIMEOUT_S)
        store.set(key, b"v")
        assert waiting.result(TIMEOUT_S) == [b"v"]
        assert watch.next(TIMEOUT_S)[:2] == (key, b"v")
        assert [entry.key for entry in store.list_prefix("é")] == [key]
        assert store.delete(key)
        assert watch.next(TIMEOUT_S)[:2] == (key, None)


def test_closing_wakes_all_threads_when_the_cluster_is_gone() -> None:
    with LocalEtcdServer() as server:
        store = EtcdV2Store(server.addresses)
        store.set("k", b"v")
        watch = store.watch("x")
        server.kill(0)
        with ThreadPoolExecutor() as pool:
            tasks: list[Future[Any]] = [pool.submit(watch.next), pool.submit(store.get, "k")]
            store.close()
            for task in tasks:
                with pytest.raises(UsageError, match="closed"):
                    task.result(TIMEOUT_S)


def test_many_watches_and_waits_leave_nothing_behind(store: EtcdV2Store) -> None:
    store.set("k", b"v")
    for _ in range(30):
        with store.watch("k") as watch:
            watch.next(TIMEOUT_S)
        with pytest.raises(TimeoutError):
            store.wait(["missing"], timeout=0.002)
    assert store._followers._watches == set()
    assert store._followers._sources == set()
    assert len(store._client.close()) == 1
