"""The etcd that a distribution ships, such as Debian's etcd-server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.open import open_store

SYSTEM = shutil.which("etcd", path="/usr/bin:/usr/local/bin")

pytestmark = pytest.mark.skipif(
    SYSTEM is None, reason="needs an etcd of the system, such as Debian's package etcd-server"
)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalEtcdServer]:
    with LocalEtcdServer(binary=SYSTEM) as made:
        yield made


@pytest.mark.parametrize("scheme", ["etcd", "etcd-v2"])
def test_a_store_keeps_what_it_promises(server: LocalEtcdServer, scheme: str) -> None:
    if scheme == "etcd-v2" and not server.has_v2:
        pytest.skip(f"{SYSTEM} is 3.6 or newer, which has no v2 API")
    endpoint = server.endpoint if scheme == "etcd" else server.endpoint_v2
    with open_store(f"{endpoint}/{scheme}") as store, open_store(f"{endpoint}/{scheme}") as other:
        store.set("key", b"value")
        with other.watch("key") as watch:
            assert watch.next(20.0).value == b"value"
            assert [store.add("n"), other.add("n", 2)] == [1, 3]
            assert store.compare_set("key", b"value", b"new").value == b"new"
            assert watch.next(20.0).value == b"new"
        assert other.compare_set("key", b"value", b"other").value == b"new"
        store.multi_set({"a": b"1", "b": b"2"})
        assert other.multi_get(["a", "b"]) == [b"1", b"2"]


def test_three_members_serve_though_one_is_killed() -> None:
    with LocalEtcdServer(3, binary=SYSTEM) as server, open_store(server.endpoint) as store:
        store.set("key", b"value")
        server.kill(server.leader())
        assert store.add("n", timeout=30.0) == 1
        assert store.get("key") == b"value"
