"""The memory store: what the contract suite cannot see from outside."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import TimeoutExpired, UsageError
from holdfast.store.memory import MemoryStore
from holdfast.store.ops import Change
from holdfast.testing.clock import ManualClock
from tests.waiting import with_more_time


def test_leases_run_on_the_stores_clock() -> None:
    clock = ManualClock()
    with MemoryStore(clock) as store:
        store.set("k", b"", lease=store.grant_lease(10))
        clock.advance(9.99)
        assert store.count() == 1
        clock.advance(0.01)
        assert store.count() == 0


def test_a_watch_that_is_not_read_keeps_one_change_for_each_key() -> None:
    with MemoryStore() as store, store.watch("p/", prefix=True) as watch:
        for number in range(1000):
            store.set("p/a", b"%d" % number)
            store.set("p/b", b"%d" % number)
        assert watch.next(0) == Change("p/a", b"999", 1999)
        assert watch.next(0) == Change("p/b", b"999", 2000)
        with pytest.raises(TimeoutExpired):
            watch.next(0)


def test_a_watch_does_not_begin_with_what_expired_before_it() -> None:
    clock = ManualClock()
    with MemoryStore(clock) as store:
        store.set("gone", b"", lease=store.grant_lease(1))
        store.set("here", b"")
        clock.advance(1)
        with store.watch("", prefix=True) as watch:
            assert watch.next(0) == Change("here", b"", 2)
            with pytest.raises(TimeoutExpired):
                watch.next(0)


def test_an_expiry_reaches_watches_without_any_operation() -> None:
    def expire(seconds: float) -> None:
        with MemoryStore() as store, store.watch("k") as watch:
            store.set("k", b"v", lease=store.grant_lease(seconds))
            assert watch.next(30).value == b"v"
            assert watch.next(30).value is None

    with_more_time(expire, 0.05)


def test_a_wait_that_sees_an_expiry_tells_the_watches() -> None:
    clock = ManualClock()
    with MemoryStore(clock) as store, store.watch("k") as watch:
        store.set("k", b"v", lease=store.grant_lease(1))
        assert watch.next(0).value == b"v"
        clock.advance(1)
        with pytest.raises(TimeoutExpired):
            store.wait(["k"], timeout=0)
        assert watch.next(0).value is None


def test_closed_watches_are_forgotten() -> None:
    with MemoryStore() as store:
        for _ in range(10):
            store.watch("k").close()
        assert not store._watches


def test_close_wakes_waits_and_watches() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.wait, ["k"], timeout=None)
        watching = pool.submit(store.watch("k").next)
        store.close()
        for ended in (waiting, watching):
            with pytest.raises(UsageError, match="closed"):
                ended.result(30)
