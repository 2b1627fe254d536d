"""The public interface of stores as a user types it. Checked by mypy, never run."""

from __future__ import annotations

from typing import assert_type

import holdfast
from holdfast import (
    HoldfastError,
    LeaseKeeper,
    PrefixStore,
    Store,
    Watch,
    all_gather,
    barrier,
    open_store,
    serve_store,
)
from holdfast.errors import StoreUnavailable, TimeoutExpired, UsageError
from holdfast.ids import LeaseId
from holdfast.store.ops import Add, Change, Entry, Get, Lease, Op, Swap, Wait
from holdfast.store.server import StoreServer


def reading(store: Store) -> None:
    assert_type(store.get("k"), bytes | None)
    assert_type(store.get_entry("k", timeout=None), Entry | None)
    assert_type(store.multi_get(["a", "b"]), list[bytes | None])
    assert_type(store.multi_get({"a", "b"}), list[bytes | None])
    assert_type(store.wait(["a"], timeout=1), list[bytes])
    assert_type(store.count(), int)
    assert_type(store.list_prefix("p/"), list[Entry])
    key, value, revision = store.list_prefix()[0]
    assert_type((key, value, revision), tuple[str, bytes, int])


def writing(store: Store) -> None:
    assert_type(store.set("k", b"v"), int)
    assert_type(store.multi_set({"a": b"1"}, timeout=0.5), int)
    assert_type(store.add("n"), int)
    assert_type(store.append("k", b"more"), int)
    assert_type(store.delete("k"), bool)
    ok, value, revision = store.compare_set("k", None, b"first")
    assert_type(store.compare_set("k", b"first", None), Swap)
    assert_type((ok, value, revision), tuple[bool, bytes | None, int])


def leasing(store: Store) -> None:
    lease = store.grant_lease(10)
    assert_type(lease, Lease)
    assert_type(lease.id, LeaseId)
    assert_type(store.keep_lease(lease), float)
    assert_type(store.revoke_lease(lease), bool)
    store.set("k", b"v", lease=lease)

    with LeaseKeeper(store, ttl=5.0) as keeper:
        assert_type(keeper.lease, Lease)
        assert_type(keeper.lost, bool)


def meeting(store: Store) -> None:
    barrier(store, "round-1", rank=0, world_size=2)
    assert_type(all_gather(store, "round-2", 0, 2, b"mine", timeout=5), list[bytes])


def watching(store: Store) -> None:
    with store.watch("jobs/", prefix=True) as watch:
        assert_type(watch, Watch)
        assert_type(watch.next(timeout=1.0), Change)
        for change in watch:
            assert_type(change.value, bytes | None)


def opening() -> None:
    with serve_store() as server, open_store(server.endpoint) as store:
        assert_type(server, StoreServer)
        assert_type(store, Store)
        view: Store = PrefixStore(store, "mine/")
        view.close()
    assert_type(holdfast.open_store("memory://", timeout=None), Store)
    assert_type(holdfast.__version__, str)


def failing(store: Store) -> tuple[str, ...]:
    try:
        store.set("k", b"v")
    except TimeoutExpired as error:
        assert_type(error.maybe_applied, bool)
        return error.waiting_for
    except StoreUnavailable as error:
        return (error.address, str(error.step))
    except (UsageError, HoldfastError):
        return ()
    return ()


def result_of(op: Op[int]) -> Op[int]:
    return op


# An operation knows the type of its result.
result_of(Add("n", 1))
result_of(Get("k"))  # type: ignore[arg-type]
result_of(Wait(("k",)))  # type: ignore[arg-type]


def mistakes(store: Store) -> None:
    store.set("k", "text")  # type: ignore[arg-type]
    store.set("k", b"v", store.grant_lease(1))  # type: ignore[call-arg]
    store.get(b"k")  # type: ignore[arg-type]
    store.endpoint.decode()  # type: ignore[attr-defined]
