"""A kept lease lives on, is revoked in the end, and its loss is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TypeVar

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import LeaseLost, StoreUnavailable, UsageError
from holdfast.store.lease import LeaseKeeper
from holdfast.store.memory import MemoryStore
from holdfast.store.ops import LeaseGrant, LeaseKeep, LeaseRevoke, Op
from holdfast.store.store import Store, Watch
from holdfast.testing.clock import ManualClock

R = TypeVar("R")
TTL_S = 0.3
UNHURRIED_S = 3.0  # no thread waits so long for its turn
TIMEOUT_S = 30.0


class FlakyStore(Store):
    """A store whose keep-alives and revocations fail on demand; it counts the keep-alives."""

    def __init__(self, below: Store) -> None:
        self.below = below
        self.endpoint = below.endpoint
        self.failure: Exception | None = None
        self.kept = threading.Semaphore(0)
        self.keeps: list[float] = []
        self.gate = threading.Event()
        self.gate.set()

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        if isinstance(op, LeaseKeep):
            self.keeps.append(SYSTEM_CLOCK.monotonic())
            self.kept.release()
        if self.failure is not None and isinstance(op, (LeaseKeep, LeaseRevoke)):
            raise self.failure
        if isinstance(op, LeaseKeep):
            self.gate.wait(TIMEOUT_S)
        return self.below._perform(op, deadline)

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        return self.below._open_watch(key, prefix, deadline)

    def _close(self) -> None:
        self.below.close()


@pytest.fixture
def store() -> Iterator[FlakyStore]:
    with FlakyStore(MemoryStore(ManualClock())) as made:  # where no slow machine ends a lease
        yield made


def test_a_lease_is_kept_beyond_its_time_and_revoked_in_the_end() -> None:
    clock = ManualClock()
    store = FlakyStore(MemoryStore(clock))
    with LeaseKeeper(store, TTL_S, clock=clock) as keeper:
        store.set("k", b"v", lease=keeper.lease)
        for _ in range(6):
            assert store.kept.acquire(timeout=TIMEOUT_S)
            clock.advance(0.4 * TTL_S)
        assert store.get("k") == b"v"
        assert not keeper.lost
        lease = keeper.lease
    assert store.get("k") is None
    assert store.revoke_lease(lease) is False
    with pytest.raises(UsageError, match="not open"):
        _ = keeper.lease


def test_beats_come_three_times_in_a_lease_and_never_in_a_burst(store: FlakyStore) -> None:
    with LeaseKeeper(store, UNHURRIED_S):
        for _ in range(4):
            assert store.kept.acquire(timeout=TIMEOUT_S)
    gaps = [later - sooner for sooner, later in zip(store.keeps, store.keeps[1:], strict=False)]
    # Beats lie on a grid of a third of the lease. One that comes late may be followed by one in
    # time, but all of them together are never faster than the grid.
    assert sum(gaps) > (len(gaps) - 1) * UNHURRIED_S / 3


def test_a_revoked_lease_is_lost_and_told_once(store: FlakyStore) -> None:
    told: Future[LeaseLost] = Future()
    keeper = LeaseKeeper(store, TTL_S, on_lost=told.set_result, clock=ManualClock())
    keeper.open()
    store.revoke_lease(keeper.lease)
    assert "revoked" in str(told.result(TIMEOUT_S))
    assert keeper.lost
    with pytest.raises(LeaseLost, match="lease 1 of memory:// is lost"):
        _ = keeper.lease
    beats = len(store.keeps)
    keeper.close()
    assert len(store.keeps) == beats


def test_a_short_failure_is_lived_through(store: FlakyStore) -> None:
    with LeaseKeeper(store, TTL_S, clock=ManualClock()) as keeper:
        store.failure = StoreUnavailable("gone for a moment")
        assert store.kept.acquire(timeout=TIMEOUT_S)
        store.failure = None
        assert store.kept.acquire(timeout=TIMEOUT_S)
        assert store.kept.acquire(timeout=TIMEOUT_S)
        assert not keeper.lost


def test_a_lease_that_cannot_be_renewed_is_lost_when_its_time_is_over(store: FlakyStore) -> None:
    clock = ManualClock()
    told: Future[LeaseLost] = Future()
    store.failure = StoreUnavailable("the cable is cut")
    with LeaseKeeper(store, TTL_S, on_lost=told.set_result, clock=clock) as keeper:
        assert store.kept.acquire(timeout=TIMEOUT_S)
        clock.advance(0.9 * TTL_S)
        assert store.kept.acquire(timeout=TIMEOUT_S)
        assert not told.done()
        assert not keeper.lost
        clock.advance(0.1 * TTL_S + 0.001)
        assert "the cable is cut" in str(told.result(TIMEOUT_S))
        with pytest.raises(LeaseLost, match="the cable is cut"):
            _ = keeper.lease


def test_a_lease_is_lost_at_the_end_of_its_time_whatever_the_keeper_waits_for() -> None:
    clock = ManualClock()
    store = FlakyStore(MemoryStore(ManualClock()))
    store.gate.clear()  # a store that does not answer, and does not even time out
    told: Future[LeaseLost] = Future()
    with LeaseKeeper(store, TTL_S, on_lost=told.set_result, clock=clock) as keeper:
        assert store.kept.acquire(timeout=TIMEOUT_S)
        clock.advance(0.9 * TTL_S)
        assert not keeper.lost
        assert keeper.lease.ttl == TTL_S
        clock.advance(0.1 * TTL_S + 0.001)
        assert keeper.lost
        with pytest.raises(LeaseLost, match="lease 1 of memory:// is lost: it was not renewed"):
            _ = keeper.lease
        store.gate.set()  # the answer comes, too late: what was seen to be lost stays so
        assert "its renewal came too late" in str(told.result(TIMEOUT_S))
        assert keeper.lost


def test_a_renewal_does_not_wait_beyond_the_lease() -> None:
    clock = ManualClock()

    class SlowToGrant(FlakyStore):
        def _perform(self, op: Op[R], deadline: Deadline) -> R:
            if isinstance(op, LeaseGrant):
                clock.advance(0.95 * TTL_S)
            if isinstance(op, LeaseKeep):
                asked_for.set_result(deadline.remaining() or 0.0)
            return super()._perform(op, deadline)

    asked_for: Future[float] = Future()
    store = SlowToGrant(MemoryStore(ManualClock()))
    with LeaseKeeper(store, TTL_S, clock=clock):
        assert asked_for.result(TIMEOUT_S) <= 0.051 * TTL_S


def test_a_closed_store_means_a_lost_lease(store: FlakyStore) -> None:
    told: Future[LeaseLost] = Future()
    with LeaseKeeper(store, TTL_S, on_lost=told.set_result, clock=ManualClock()):
        store.close()
        assert "UsageError: the store memory:// is closed" in str(told.result(TIMEOUT_S))


def test_closing_does_not_raise_when_the_store_is_out_of_reach(store: FlakyStore) -> None:
    with LeaseKeeper(store, 60.0):
        store.failure = StoreUnavailable("gone")


def test_close_is_idempotent_and_ends_the_thread(store: FlakyStore) -> None:
    before = threading.active_count()
    keeper = LeaseKeeper(store, 60.0)
    keeper.open()
    assert threading.active_count() == before + 1
    keeper.close()
    keeper.close()
    assert threading.active_count() == before
    with pytest.raises(UsageError, match="opened once"):
        keeper.open()


def test_a_keeper_may_be_closed_by_its_own_callback(store: FlakyStore) -> None:
    closed = threading.Event()

    def on_lost(_: LeaseLost) -> None:
        keeper.close()
        closed.set()

    keeper = LeaseKeeper(store, TTL_S, on_lost=on_lost, clock=ManualClock())
    keeper.open()
    store.revoke_lease(keeper.lease)
    assert closed.wait(TIMEOUT_S)


def test_a_keeper_closed_before_it_was_opened_stays_closed(store: FlakyStore) -> None:
    keeper = LeaseKeeper(store, 1.0)
    with pytest.raises(UsageError, match="not open"):
        _ = keeper.lease
    keeper.close()
    with pytest.raises(UsageError, match="opened once"):
        keeper.open()


def test_a_bad_time_is_refused(store: FlakyStore) -> None:
    with pytest.raises(UsageError, match="ttl 0"):
        LeaseKeeper(store, 0)
