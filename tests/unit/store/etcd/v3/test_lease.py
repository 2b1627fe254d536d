"""Leases are taken, kept and ended once, also when answers are lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.errors import LeaseLost
from holdfast.ids import LeaseId
from holdfast.store.etcd.v3.store import EtcdStore
from holdfast.store.ops import Lease
from tests.unit.store.etcd.proxy import Fate, Proxy


@pytest.fixture
def store(proxy: Proxy, prefix: str) -> Iterator[EtcdStore]:
    with EtcdStore([proxy.address], prefix) as made:
        yield made


def test_the_granted_time_is_whole_seconds(store: EtcdStore) -> None:
    assert store.grant_lease(59.2).ttl == 60.0
    assert store.grant_lease(0.01).ttl == 1.0


@pytest.mark.parametrize("fate", [Fate.LOSE_REPLY, Fate.LOSE_REQUEST])
def test_a_grant_whose_answer_is_lost(store: EtcdStore, proxy: Proxy, fate: Fate) -> None:
    proxy.next("/v3/lease/grant", fate)
    lease = store.grant_lease(100)
    assert lease.ttl == 100.0
    assert store.keep_lease(lease) == 100.0
    grants = [request for request in proxy.requests if b"/v3/lease/grant" in request]
    assert len(grants) == 2
    assert grants[0] == grants[1]


@pytest.mark.parametrize("fate", [Fate.LOSE_REPLY, Fate.LOSE_REQUEST])
def test_a_keep_whose_answer_is_lost(store: EtcdStore, proxy: Proxy, fate: Fate) -> None:
    lease = store.grant_lease(100)
    proxy.next("/v3/lease/keepalive", fate)
    assert store.keep_lease(lease) == 100.0


@pytest.mark.parametrize("fate", [Fate.LOSE_REPLY, Fate.LOSE_REQUEST])
def test_a_revocation_whose_answer_is_lost(store: EtcdStore, proxy: Proxy, fate: Fate) -> None:
    lease = store.grant_lease(100)
    store.set("k", b"v", lease=lease)
    proxy.next("/v3/lease/revoke", fate)
    assert store.revoke_lease(lease) is True
    assert store.get("k") is None
    assert store.revoke_lease(lease) is False


def test_a_lease_that_never_was(store: EtcdStore) -> None:
    lease = Lease(LeaseId(12345), 1.0)
    assert store.revoke_lease(lease) is False
    with pytest.raises(LeaseLost, match="12345"):
        store.keep_lease(lease)
