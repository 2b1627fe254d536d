"""Operations on the v2 keys API: leases that end, nodes left over, answers that are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import Deadline
from holdfast.errors import Fenced, InternalError, LeaseLost, StoreUnavailable
from holdfast.ids import LeaseId
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.etcd.v2.api import ask, get, remove
from holdfast.store.etcd.v2.ops import Task
from holdfast.store.etcd.v2.store import EtcdV2Store
from holdfast.store.fenced import FencedStore
from holdfast.store.ops import Lease, Wait
from holdfast.store.store import Store
from tests.unit.store.etcd.proxy import Fate, Proxy

TIMEOUT_S = 30.0


@pytest.fixture
def store(etcd_server: LocalEtcdServer, prefix: str) -> Iterator[EtcdV2Store]:
    with EtcdV2Store(etcd_server.addresses, prefix) as made:
        yield made


@pytest.fixture
def lossy(proxy: Proxy, prefix: str) -> Iterator[EtcdV2Store]:
    with EtcdV2Store([proxy.address], prefix) as made:
        yield made


def nodes(store: EtcdV2Store) -> list[str]:
    """Return the names of the keys' nodes, those of dead leases included."""
    with store._client.lane() as lane:
        request = get(store._layout.keys)
        body = ask(store._client, lane, request, Deadline.after(TIMEOUT_S), "test").body
        return sorted(item["key"].rpartition("/")[2] for item in body["node"].get("nodes", ()))


def end_lease(store: EtcdV2Store, lease: Lease) -> None:
    """End a lease as its time does: the keys are not removed."""
    with store._client.lane() as lane:
        request = remove(store._layout.lease(lease.id))
        ask(store._client, lane, request, Deadline.after(TIMEOUT_S), "test")


def test_a_dead_key_is_gone_for_every_operation_although_its_node_is_there(
    store: EtcdV2Store,
) -> None:
    reads: list[tuple[Callable[[Store], object], object]] = [
        (lambda s: s.get("k"), None),
        (lambda s: s.multi_get(["k"]), [None]),
        (lambda s: s.count(), 0),
        (lambda s: s.list_prefix(), []),
        (lambda s: s.delete("k"), False),
        (lambda s: s.compare_set("k", b"5", b"6").ok, False),
        (lambda s: s.compare_set("k", None, b"7").ok, True),
        (lambda s: s.add("k"), 1),
        (lambda s: s.append("k", b"x"), 1),
    ]
    for operation, result in reads:
        lease = store.grant_lease(60)
        store.set("k", b"5", lease=lease)
        end_lease(store, lease)
        assert nodes(store) == ["k"]
        assert operation(store) == result
        store.delete("k")


def test_reading_removes_the_nodes_of_the_dead(store: EtcdV2Store) -> None:
    lease = store.grant_lease(60)
    store.multi_set({"a": b"", "b": b""}, lease=lease)
    store.set("stays", b"")
    end_lease(store, lease)
    assert store.count() == 1
    assert nodes(store) == ["stays"]


def test_a_key_written_again_is_not_removed_with_the_dead(store: EtcdV2Store) -> None:
    lease = store.grant_lease(60)
    store.set("k", b"old", lease=lease)
    with store._client.lane() as lane:
        task = Task(store._client, store._layout, lane, Deadline.after(TIMEOUT_S), "test")
        old = task._read("k")
        assert old is not None
        store.set("k", b"new")
        assert not task._drop(old)
        store.delete("k")
        assert task._drop(old)


def test_a_revocation_removes_the_nodes(store: EtcdV2Store) -> None:
    lease = store.grant_lease(60)
    store.set("k", b"", lease=lease)
    store.set("stays", b"")
    assert store.revoke_lease(lease)
    assert nodes(store) == ["stays"]


def test_the_time_to_live_is_in_the_number(store: EtcdV2Store) -> None:
    lease = store.grant_lease(86_399.5)
    assert lease.ttl == 86_400.0
    assert store.keep_lease(lease) == 86_400.0
    with pytest.raises(LeaseLost):
        store.keep_lease(Lease(LeaseId(1), 1.0))


WRITES: list[Callable[[Store], object]] = [
    lambda s: s.set("k", b"v"),
    lambda s: s.multi_set({"a": b"", "k": b"v"}),
    lambda s: s.add("n"),
    lambda s: s.append("k", b"v"),
    lambda s: s.compare_set("k", None, b"v"),
]


@pytest.mark.parametrize("write", WRITES, ids=["set", "multi_set", "add", "append", "compare_set"])
@pytest.mark.parametrize("fate", [Fate.LOSE_REPLY, Fate.LOSE_REQUEST])
def test_a_write_whose_answer_is_lost_says_so(
    lossy: EtcdV2Store, proxy: Proxy, write: Callable[[Store], object], fate: Fate
) -> None:
    proxy.next("PUT", fate)
    with pytest.raises(StoreUnavailable) as caught:
        write(lossy)
    assert caught.value.maybe_applied
    assert proxy.requests[-1].startswith(b"PUT")  # it was not repeated


def test_a_multi_set_that_breaks_off_may_have_been_applied_in_part(
    lossy: EtcdV2Store, store: EtcdV2Store, proxy: Proxy
) -> None:
    proxy.next("PUT", Fate.PASS, Fate.LOSE_REQUEST)
    with pytest.raises(StoreUnavailable) as caught:
        lossy.multi_set({"a": b"1", "b": b"2"})
    assert caught.value.maybe_applied
    assert [entry.key for entry in store.list_prefix()] == ["a"]


@pytest.mark.parametrize("fate", [Fate.LOSE_REPLY, Fate.LOSE_REQUEST])
def test_leases_do_not_mind_lost_answers(lossy: EtcdV2Store, proxy: Proxy, fate: Fate) -> None:
    proxy.next("PUT", fate)
    lease = lossy.grant_lease(60)
    proxy.next("PUT", fate)
    assert lossy.keep_lease(lease) == 60.0
    proxy.next("DELETE", fate)
    assert lossy.revoke_lease(lease) is True
    assert lossy.revoke_lease(lease) is False


def test_a_wait_is_not_for_a_task(store: EtcdV2Store) -> None:
    with store._client.lane() as lane:
        task = Task(store._client, store._layout, lane, Deadline.after(TIMEOUT_S), "test")
        with pytest.raises(InternalError):
            task.perform(Wait(("k",)))


def test_a_guard_whose_lease_is_dead_does_not_hold(store: EtcdV2Store) -> None:
    lease = store.grant_lease(60)
    store.set("g", b"1", lease=lease)
    view = FencedStore(store, "g", b"1")
    assert view.add("n") == 1
    end_lease(store, lease)
    with pytest.raises(Fenced):
        view.add("n")
    assert store.get("n") == b"1"
