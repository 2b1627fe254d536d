"""The store on etcd's v3 API: what the contract suite does not ask of every backend."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import PeerViolation, Step, StoreUnavailable, UsageError
from holdfast.ids import LeaseId
from holdfast.net.address import Address
from holdfast.store.etcd import local_server as server_module
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.etcd.v3.store import READS_PER_TXN, EtcdStore
from holdfast.store.ops import MultiSet
from tests.unit.store.etcd.fakes import answering, http
from tests.unit.store.etcd.proxy import Fate, Proxy

TIMEOUT_S = 30.0


@pytest.fixture
def store(etcd_server: LocalEtcdServer, prefix: str) -> Iterator[EtcdStore]:
    with EtcdStore(etcd_server.addresses, prefix) as made:
        yield made


@pytest.fixture(scope="module")
def foreign() -> Iterator[LocalEtcdServer]:
    """An etcd with the usual settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "_SETTINGS", ("--log-level=warn",))
        with LocalEtcdServer() as server:
            yield server


def test_making_one_does_no_io_and_the_endpoint_says_where(unused: Address) -> None:
    store = EtcdStore([unused, Address("::1", 2379)], "jobs/1")
    assert store.endpoint == f"etcd://{unused},[::1]:2379/jobs/1"
    store.close()


def test_an_address_is_needed() -> None:
    with pytest.raises(UsageError, match="an address is missing"):
        EtcdStore([])


def test_stores_with_other_prefixes_do_not_see_each_other(
    etcd_server: LocalEtcdServer, prefix: str
) -> None:
    names = [prefix, f"{prefix}-2", f"{prefix}/sub"]
    stores = [EtcdStore(etcd_server.addresses, name) for name in names]
    for number, one in enumerate(stores):
        one.set("k", b"%d" % number)
    # A prefix below another one is inside it, as its path says.
    assert [one.count() for one in stores] == [2, 1, 1]
    assert stores[0].get("sub/k") == b"2"
    for one in stores:
        one.close()


# Many keys.


def test_many_keys_are_read_at_one_moment(store: EtcdStore) -> None:
    keys = [f"k{number}" for number in range(3 * READS_PER_TXN + 1)]
    store.multi_set(dict.fromkeys(keys, b"0"))
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            store.multi_set(dict.fromkeys(keys, b"%d" % number))

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(write)
        try:
            for _ in range(10):
                assert len(set(store.multi_get(keys))) == 1
        finally:
            stop.set()
        writing.result(TIMEOUT_S)


def test_many_keys_are_waited_for(store: EtcdStore) -> None:
    keys = [f"rank-{number:03}" for number in range(300)]
    random.Random(3).shuffle(keys)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.wait, keys, timeout=TIMEOUT_S)
        for start in range(0, len(keys), 50):
            store.multi_set({key: key.encode() for key in keys[start : start + 50]})
        assert waiting.result(TIMEOUT_S) == [key.encode() for key in keys]


def test_a_key_named_twice_in_one_write_gets_the_last_value(store: EtcdStore) -> None:
    store._run(MultiSet((("k", b"1"), ("k", b"2"))), TIMEOUT_S)
    assert store.get("k") == b"2"


def test_an_empty_write_with_a_lease_that_is_gone(store: EtcdStore) -> None:
    lease = store.grant_lease(60)
    assert store.multi_set({}, lease=lease) > 0
    store.revoke_lease(lease)
    with pytest.raises(ConnectionError, match="expired or was revoked"):
        store.multi_set({}, lease=lease)


def test_a_failed_comparison_with_a_lease_that_is_gone(store: EtcdStore) -> None:
    store.set("k", b"1")
    lease = store.grant_lease(60)
    assert not store.compare_set("k", b"0", b"2", lease=lease).ok
    store.revoke_lease(lease)
    with pytest.raises(ConnectionError, match="expired or was revoked"):
        store.compare_set("k", b"0", b"2", lease=lease)
    assert store.compare_set("k", None, None) == (False, b"1", store.set("k", b"1") - 1)


# Other people's servers.


def test_a_server_with_small_limits_says_which(foreign: LocalEtcdServer) -> None:
    with EtcdStore(foreign.addresses) as store:
        assert store.multi_set({f"k{number}": b"" for number in range(127)}) > 0
        with pytest.raises(UsageError, match="larger --max-txn-ops"):
            store.multi_set({f"k{number}": b"" for number in range(128)})
        with pytest.raises(UsageError, match="larger --max-request-bytes"):
            store.set("k", bytes(2 * 1024 * 1024))
        keys = [f"k{number}" for number in range(500)]
        assert store.multi_get(keys) == [b""] * 127 + [None] * 373
        assert store.grant_lease(0.5).ttl == 2.0


def test_what_is_no_etcd_is_said_at_once() -> None:
    with (
        answering(http(404, b"404 page not found\n")) as address,
        EtcdStore([address]) as store,
        pytest.raises(PeerViolation, match=f"{address} does not serve etcd's v3 API") as caught,
    ):
        store.get("k", timeout=TIMEOUT_S)
    assert "\n" not in str(caught.value)


# Members that are away.


def test_one_member_that_answers_is_enough(
    etcd_server: LocalEtcdServer, unused: Address, prefix: str
) -> None:
    for seed in range(4):
        addresses = [unused, etcd_server.addresses[0], Address("no-such-host.invalid", 1)]
        with EtcdStore(addresses, prefix, rng=random.Random(seed)) as store:
            assert store.add("n") == seed + 1
            with store.watch("n") as watch:
                assert watch.next(TIMEOUT_S).value == b"%d" % (seed + 1)


def test_an_absent_server_is_reported_with_the_step_and_the_address(unused: Address) -> None:
    with EtcdStore([unused]) as store:
        with pytest.raises(StoreUnavailable, match=f"cannot connect to {unused}") as caught:
            store.get("k", timeout=1.0)
        assert caught.value.step is Step.TCP
        assert caught.value.address == str(unused)
        assert not caught.value.maybe_applied
        with pytest.raises(StoreUnavailable):
            store.watch("k", timeout=1.0)
        with pytest.raises(StoreUnavailable):
            store.wait(["k"], timeout=1.0)


def test_a_wait_goes_on_when_its_stream_ends(store: EtcdStore, proxy: Proxy, prefix: str) -> None:
    proxy.next("/v3/watch", *[Fate.LOSE_REQUEST] * 5)
    with EtcdStore([proxy.address], prefix) as waiter, ThreadPoolExecutor() as pool:
        waiting = pool.submit(waiter.wait, ["k"], timeout=TIMEOUT_S)
        store.set("k", b"v")
        assert waiting.result(TIMEOUT_S) == [b"v"]


# Closing.


def test_closing_is_prompt_when_the_cluster_is_gone() -> None:
    with LocalEtcdServer() as server:
        store = EtcdStore(server.addresses)
        store.set("k", b"v")
        watch = store.watch("k")
        server.kill(0)
        with ThreadPoolExecutor() as pool:
            tasks: list[Future[Any]] = [pool.submit(store.add, "n"), pool.submit(store.wait, ["x"])]
            started = SYSTEM_CLOCK.monotonic()
            store.close()
            for task in tasks:
                with pytest.raises(UsageError, match="closed"):
                    task.result(TIMEOUT_S)
            assert SYSTEM_CLOCK.monotonic() - started < TIMEOUT_S
        with pytest.raises(UsageError, match="closed"):
            watch.next()


def test_many_watches_and_waits_leave_nothing_behind(store: EtcdStore) -> None:
    store.set("k", b"v")
    for _ in range(50):
        with store.watch("k") as watch:
            watch.next(TIMEOUT_S)
        with pytest.raises(TimeoutError):
            store.wait(["missing"], timeout=0.002)
    assert store._followers._watches == set()
    assert store._followers._sources == set()
    assert len(store._client.close()) == 1


def test_a_lease_number_is_the_clusters_own(store: EtcdStore, etcd_server: LocalEtcdServer) -> None:
    lease = store.grant_lease(60)
    with EtcdStore(etcd_server.addresses, "elsewhere") as other:
        assert other.keep_lease(lease) == 60.0
        other.set("k", b"v", lease=lease)
        store.revoke_lease(lease)
        assert other.get("k") is None
    assert LeaseId(lease.id) > 0
