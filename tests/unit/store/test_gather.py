"""Barrier and all-gather: all ranks meet, at O(1) operations each, or the missing are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from holdfast.clock import Deadline
from holdfast.errors import TimeoutExpired, UsageError
from holdfast.store.gather import all_gather, barrier
from holdfast.store.memory import MemoryStore
from holdfast.store.ops import Add, ListPrefix, Op
from holdfast.store.store import Store, Watch
from tests.waiting import with_more_time

T = TypeVar("T")
R = TypeVar("R")


class CountingStore(Store):
    """Counts the operations that one participant performs on the store below."""

    def __init__(self, below: Store) -> None:
        self.below = below
        self.endpoint = below.endpoint
        self.performed: Counter[str] = Counter()

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        self.performed[type(op).__name__] += 1
        return self.below._perform(op, deadline)

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        return self.below._open_watch(key, prefix, deadline)

    def _close(self) -> None:
        pass


def everybody(world_size: int, part: Callable[[int], T]) -> list[T]:
    """Run the part of every rank at once and return their results by rank."""
    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(part, range(world_size)))


@pytest.mark.parametrize("world_size", [1, 2, 11])
def test_all_gather_gives_each_rank_all_values_in_order_of_ranks(world_size: int) -> None:
    with MemoryStore() as store:
        found = everybody(
            world_size, lambda rank: all_gather(store, "g", rank, world_size, b"<%d>" % rank)
        )
    assert found == [[b"<%d>" % rank for rank in range(world_size)]] * world_size


def test_no_rank_passes_a_barrier_before_all_have_come() -> None:
    with MemoryStore() as store, ThreadPoolExecutor() as pool:
        waiting = [pool.submit(barrier, store, "b", rank, 3) for rank in (0, 2)]
        store.wait(["b/rank/0", "b/rank/2"], timeout=30)
        assert not any(done.done() for done in waiting)
        barrier(store, "b", 1, 3)
        for done in waiting:
            done.result(30)


def test_each_participant_costs_the_same_however_many_there_are() -> None:
    most: dict[int, list[int]] = {}
    for world_size in (4, 256):
        with MemoryStore() as memory:
            stores = [CountingStore(memory) for _ in range(world_size)]
            everybody(world_size, lambda r: barrier(stores[r], "b", r, len(stores)))  # noqa: B023
            barrier_costs = [store.performed.total() for store in stores]
            everybody(world_size, lambda r: all_gather(stores[r], "g", r, len(stores), b""))  # noqa: B023
            costs = [store.performed.total() for store in stores]
        assert len(set(barrier_costs)) == len(set(costs)) == 1
        most[world_size] = [barrier_costs[0], costs[0] - barrier_costs[0]]
    assert most == {4: [3, 4], 256: [3, 4]}


def test_a_timeout_names_the_missing_ranks() -> None:
    def wait_in_vain(seconds: float) -> None:
        with MemoryStore() as store, ThreadPoolExecutor(6) as pool:
            waiting = [
                pool.submit(barrier, store, "exit/1", rank, 8, timeout=seconds)
                for rank in range(8)
                if rank not in (3, 7)
            ]
            errors = [done.exception(30) for done in waiting]
        for error in errors:
            assert isinstance(error, TimeoutExpired)
            assert str(error) == "'exit/1': missing ranks 3, 7 of 8"
            assert error.waiting_for == ("rank 3", "rank 7")

    with_more_time(wait_in_vain)


def test_a_timeout_names_one_rank_in_the_singular_and_not_thousands() -> None:
    with MemoryStore() as store:
        with pytest.raises(TimeoutExpired, match="missing rank 1 of 2$"):
            all_gather(store, "two", 0, 2, b"", timeout=0)
        with pytest.raises(TimeoutExpired, match="19, 20 and 979 more of 1000$") as caught:
            barrier(store, "many", 0, 1000, timeout=0.01)
    assert len(caught.value.waiting_for) == 999
    assert len(str(caught.value)) < 150


class SilentStore(CountingStore):
    """Answers everything but the listing of ranks."""

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        if isinstance(op, ListPrefix):
            raise TimeoutExpired("no answer")
        return super()._perform(op, deadline)


def test_a_store_that_falls_silent_is_a_timeout_too() -> None:
    with MemoryStore() as memory, pytest.raises(TimeoutExpired, match="did not say which"):
        barrier(SilentStore(memory), "b", 0, 2, timeout=0.01)


class DyingStore(CountingStore):
    """The store of a rank that dies after it arrived and before it is counted."""

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        if isinstance(op, Add):
            raise KeyboardInterrupt
        return super()._perform(op, deadline)


def test_a_rank_that_died_after_its_arrival_blocks_no_rank_for_ever() -> None:
    with MemoryStore() as store:
        with pytest.raises(KeyboardInterrupt):
            all_gather(DyingStore(store), "g", 1, 2, b"last words")
        assert all_gather(store, "g", 0, 2, b"0", timeout=0.1) == [b"0", b"last words"]
        assert store.get("g/done") == b"2"


def test_a_rank_cannot_use_a_name_twice() -> None:
    with MemoryStore() as store:
        barrier(store, "b", 0, 1)
        with pytest.raises(UsageError, match="'b': rank 0 has used it before"):
            barrier(store, "b", 0, 1)


def test_a_rank_may_be_as_late_as_it_likes() -> None:
    with MemoryStore() as store:
        with pytest.raises(TimeoutExpired):
            barrier(store, "b", 0, 2, timeout=0)
        barrier(store, "b", 1, 2, timeout=30)


def test_the_last_of_a_larger_world_is_told_by_the_smaller_one() -> None:
    with MemoryStore() as store:
        everybody(2, lambda rank: barrier(store, "b", rank, 2))
        with pytest.raises(UsageError, match="others use it with world_size b'2', here it is 3"):
            barrier(store, "b", 2, 3)


def test_more_ranks_than_expected_are_found_out() -> None:
    with MemoryStore() as store:
        everybody(3, lambda rank: barrier(store, "b", rank, 3))
        store.delete("b/rank/0")
        with pytest.raises(UsageError, match="4 ranks use it, 2 were expected"):
            barrier(store, "b", 0, 2)


def test_a_waiting_rank_is_told_of_another_world_size() -> None:
    with MemoryStore() as store, ThreadPoolExecutor() as pool:
        waiting = pool.submit(barrier, store, "b", 0, 3, timeout=30)
        store.wait(["b/count"], timeout=30)
        barrier(store, "b", 1, 2)
        error = waiting.exception(30)
    assert isinstance(error, UsageError)
    assert "world_size b'2', here it is 3" in str(error)


def test_values_that_were_deleted_too_early_are_missed() -> None:
    with MemoryStore() as store:
        store.set("g/count", b"1")  # rank 0 was here, and its key is gone
        with pytest.raises(UsageError, match="its keys were deleted before rank 1 read them"):
            all_gather(store, "g", 1, 2, b"")


BAD: list[tuple[tuple[Any, ...], str]] = [
    (("", 0, 1), "name '': must not be empty"),
    (("b", 1, 1), "rank 1: must be 0 to 0"),
    (("b", -1, 4), "rank -1: must be 0 to 3"),
    (("b", 0, 0), "world_size 0: must be 1 or more"),
    (("b", True, 2), "rank True: must be an int"),
    (("b", 0, 2.0), r"world_size 2\.0: must be an int"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with MemoryStore() as store:
        with pytest.raises(UsageError, match=message):
            barrier(store, *arguments)
        with pytest.raises(UsageError, match="timeout -1"):
            barrier(store, "b", 0, 1, timeout=-1)
        assert store.count() == 0
