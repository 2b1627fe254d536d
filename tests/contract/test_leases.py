"""The contract of every backend: keys live as long as their lease, no shorter, no longer (K4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import LeaseLost, TimeoutExpired
from holdfast.store.ops import Change, Lease
from holdfast.store.store import Store, Watch
from tests.contract.conftest import Space
from tests.waiting import with_more_time

TIMEOUT_S = 30.0
LONG_S = 3600.0


def test_the_granted_time_is_at_least_what_was_asked(space: Space, store: Store) -> None:
    ttl = space.backend.min_ttl_s
    assert store.grant_lease(ttl).ttl >= ttl
    assert store.grant_lease(LONG_S).ttl >= LONG_S


def test_leases_are_distinct(store: Store, other: Store) -> None:
    leases = [client.grant_lease(LONG_S) for client in (store, other) for _ in range(3)]
    assert len({lease.id for lease in leases}) == 6


def lease_of(space: Space, store: Store, *keys: str) -> Lease:
    """Write keys with a lease that ends soon, but not before a slow machine has written them."""
    granted: list[Lease] = []

    def write(seconds: float) -> None:
        granted.append(store.grant_lease(seconds))
        store.multi_set(dict.fromkeys(keys, b"v"), lease=granted[-1])

    with_more_time(write, space.backend.min_ttl_s)
    return granted[-1]


def await_end(watch: Watch) -> Change:
    """Wait until a key is gone."""
    while (change := watch.next(TIMEOUT_S)).value is not None:
        pass
    return change


def test_expiry_removes_all_keys_of_the_lease_and_never_early(
    space: Space, store: Store, other: Store
) -> None:
    store.set("stays", b"")
    started = SYSTEM_CLOCK.monotonic()
    with other.watch("a") as watch:
        lease = lease_of(space, store, "a", "b")
        gone = await_end(watch)
    assert SYSTEM_CLOCK.monotonic() - started >= lease.ttl
    assert [entry.key for entry in other.list_prefix()] == ["stays"]
    assert other.set("a", b"again") > gone.revision


def test_an_expired_lease_is_lost(space: Space, store: Store, other: Store) -> None:
    with other.watch("k") as watch:
        lease = lease_of(space, store, "k")
        await_end(watch)
    with pytest.raises(LeaseLost):
        store.keep_lease(lease)
    with pytest.raises(LeaseLost):
        store.set("k", b"", lease=lease)
    assert store.revoke_lease(lease) is False
    assert store.get("k") is None


def test_expiry_ends_a_wait_for_a_key_only_by_its_return(space: Space, store: Store) -> None:
    with store.watch("k") as watch:
        lease_of(space, store, "k")
        await_end(watch)
    with pytest.raises(TimeoutExpired):
        store.wait(["k"], timeout=0.05)
    store.set("k", b"back")
    assert store.wait(["k"], timeout=TIMEOUT_S) == [b"back"]


def test_a_lease_kept_alive_outlives_one_that_is_not(space: Space, store: Store) -> None:
    ttl = space.backend.min_ttl_s
    for _ in range(10):
        kept, left = store.grant_lease(ttl), store.grant_lease(ttl)
        store.set("kept", b"", lease=kept)
        store.set("left", b"", lease=left)
        try:
            at_end, stall = _keep_until_left_is_gone(store, kept)
        except LeaseLost:
            continue  # this machine stood still for the whole of a lease
        if stall < kept.ttl:
            assert at_end == [b"", None]
            return
    pytest.fail("this machine is too slow to keep a lease")


def _keep_until_left_is_gone(store: Store, kept: Lease) -> tuple[list[bytes | None], float]:
    """Return the two keys' values at the end, and how old the last keep-alive was by then."""
    with store.watch("left") as watch:
        while True:
            sent = SYSTEM_CLOCK.monotonic()
            assert store.keep_lease(kept) == kept.ttl
            try:
                gone = watch.next(timeout=kept.ttl / 10).value is None
            except TimeoutExpired:
                gone = False
            if gone:
                found = store.multi_get(["kept", "left"])
                return found, SYSTEM_CLOCK.monotonic() - sent


def test_revoke_removes_the_keys_at_once(store: Store, other: Store) -> None:
    lease = store.grant_lease(LONG_S)
    store.multi_set({"a": b"", "b": b""}, lease=lease)
    store.set("c", b"")
    assert other.revoke_lease(lease) is True
    assert [entry.key for entry in store.list_prefix()] == ["c"]
    assert store.revoke_lease(lease) is False


def test_a_revoked_lease_is_told_to_watches(store: Store, other: Store) -> None:
    lease = store.grant_lease(LONG_S)
    revision = store.set("k", b"v", lease=lease)
    with other.watch("k") as watch:
        assert watch.next(TIMEOUT_S).value == b"v"
        store.revoke_lease(lease)
        gone = watch.next(TIMEOUT_S)
    assert gone.value is None
    assert gone.revision > revision


WRITES_WITH_LEASE: list[Callable[[Store, Lease], object]] = [
    lambda s, lease: s.set("k", b"2", lease=lease),
    lambda s, lease: s.multi_set({"k": b"2", "m": b"2"}, lease=lease),
    lambda s, lease: s.compare_set("k", b"1", b"2", lease=lease),
]
each_write = pytest.mark.parametrize(
    "write", WRITES_WITH_LEASE, ids=["set", "multi_set", "compare_set"]
)


@each_write
def test_a_write_with_a_lost_lease_changes_nothing(
    store: Store, write: Callable[[Store, Lease], object]
) -> None:
    lease = store.grant_lease(LONG_S)
    store.revoke_lease(lease)
    before = store.set("k", b"1")
    with pytest.raises(LeaseLost):
        write(store, lease)
    with pytest.raises(LeaseLost):
        store.keep_lease(lease)
    assert store.multi_get(["k", "m"]) == [b"1", None]
    assert store.multi_set({}) == before


@each_write
def test_a_write_with_a_lease_hangs_the_key_on_it(
    store: Store, other: Store, write: Callable[[Store, Lease], object]
) -> None:
    lease = store.grant_lease(LONG_S)
    store.set("k", b"1")
    write(other, lease)
    assert store.get("k") == b"2"
    store.revoke_lease(lease)
    assert store.get("k") is None


WRITES_WITHOUT_LEASE: list[Callable[[Store], object]] = [
    lambda s: s.set("k", b"2"),
    lambda s: s.multi_set({"k": b"2"}),
    lambda s: s.compare_set("k", b"1", b"2"),
]


@pytest.mark.parametrize("write", WRITES_WITHOUT_LEASE, ids=["set", "multi_set", "compare_set"])
def test_a_write_without_a_lease_takes_the_key_off_it(
    store: Store, write: Callable[[Store], object]
) -> None:
    lease = store.grant_lease(LONG_S)
    store.set("k", b"1", lease=lease)
    write(store)
    store.revoke_lease(lease)
    assert store.get("k") == b"2"


def test_add_and_append_leave_the_key_on_its_lease(store: Store, other: Store) -> None:
    lease = store.grant_lease(LONG_S)
    store.multi_set({"n": b"1", "log": b"a"}, lease=lease)
    assert other.add("n") == 2
    assert other.append("log", b"b") == 2
    store.revoke_lease(lease)
    assert store.count() == 0


def test_a_key_moves_from_lease_to_lease(store: Store) -> None:
    first, second = store.grant_lease(LONG_S), store.grant_lease(LONG_S)
    store.set("k", b"1", lease=first)
    store.set("k", b"2", lease=second)
    store.revoke_lease(first)
    assert store.get("k") == b"2"
    store.revoke_lease(second)
    assert store.get("k") is None


def test_a_key_made_anew_does_not_hang_on_its_old_lease(store: Store) -> None:
    lease = store.grant_lease(LONG_S)
    store.set("k", b"1", lease=lease)
    store.delete("k")
    store.add("k", 5)
    store.revoke_lease(lease)
    assert store.get("k") == b"5"


def test_compare_set_that_deletes_needs_no_lease(store: Store) -> None:
    lease = store.grant_lease(LONG_S)
    store.revoke_lease(lease)
    store.set("k", b"1")
    assert store.compare_set("k", b"1", None, lease=lease).ok


def test_a_lease_without_keys_can_be_kept_and_revoked(store: Store, other: Store) -> None:
    lease = store.grant_lease(LONG_S)
    assert other.keep_lease(lease) == lease.ttl
    assert store.revoke_lease(lease) is True
