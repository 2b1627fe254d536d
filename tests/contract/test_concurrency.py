"""The contract of every backend: operations from many threads and clients are atomic (K1)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import UsageError
from holdfast.store.store import Store
from tests.contract.conftest import Space

TIMEOUT_S = 60.0
THREADS = 4


def in_threads(work: Callable[[int], None]) -> None:
    """Run the work of every thread to its end; raise what one of them raised."""
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, number) for number in range(THREADS)]:
            done.result(TIMEOUT_S)


@pytest.mark.parametrize("shared", [True, False], ids=["one client", "a client each"])
def test_concurrent_adds_sum_up_exactly(space: Space, shared: bool) -> None:
    first = space.open()
    clients = [first if shared else space.open() for _ in range(THREADS)]
    sums: list[int] = []

    def work(number: int) -> None:
        mine = [clients[number].add("n", 3) for _ in range(40)]
        assert mine == sorted(set(mine))
        sums.extend(mine)

    in_threads(work)
    assert sorted(sums) == [3 * n for n in range(1, 40 * THREADS + 1)]
    assert first.get("n") == b"%d" % (3 * 40 * THREADS)


def test_each_round_of_compare_set_has_one_winner(space: Space) -> None:
    clients = [space.open() for _ in range(THREADS)]
    gate = threading.Barrier(THREADS)
    winners: list[tuple[int, int]] = []
    clients[0].set("round", b"0")

    def work(number: int) -> None:
        for played in range(15):
            gate.wait(TIMEOUT_S)
            swap = clients[number].compare_set("round", b"%d" % played, b"%d" % (played + 1))
            assert swap.value == b"%d" % (played + 1)  # the winner's, also for the losers
            if swap.ok:
                winners.append((played, number))
            gate.wait(TIMEOUT_S)

    in_threads(work)
    assert sorted(played for played, _ in winners) == list(range(15))


def test_exactly_one_client_creates_a_key(space: Space) -> None:
    clients = [space.open() for _ in range(THREADS)]
    made: list[int] = []

    def work(number: int) -> None:
        store = clients[number]
        made.extend(n for n in range(15) if store.compare_set(f"{n}", None, b"%d" % number).ok)

    in_threads(work)
    assert sorted(made) == list(range(15))


def test_concurrent_appends_lose_nothing(space: Space) -> None:
    clients = [space.open() for _ in range(THREADS)]

    def work(number: int) -> None:
        for _ in range(20):
            clients[number].append("log", b"<%d>" % number)

    in_threads(work)
    log = clients[0].get("log") or b""
    assert all(log.count(b"<%d>" % number) == 20 for number in range(THREADS))
    assert len(log) == THREADS * 20 * 3


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s.multi_get(["a", "b"]),
        lambda s: s.wait(["a", "b"]),
        lambda s: [entry.value for entry in s.list_prefix()],
    ],
    ids=["multi_get", "wait", "list_prefix"],
)
def test_several_keys_are_read_and_written_at_one_moment(
    space: Space, store: Store, other: Store, read: Callable[[Store], list[bytes]]
) -> None:
    space.needs_atomic_multi_set()
    store.multi_set({"a": b"0", "b": b"0"})
    with ThreadPoolExecutor() as pool:
        writer = pool.submit(
            lambda: [store.multi_set({"a": b"%d" % n, "b": b"%d" % n}) for n in range(1, 101)]
        )
        seen: list[int] = []
        while not seen or seen[-1] != 100:
            a, b = map(int, read(other))
            assert a == b
            seen.append(a)
        writer.result(TIMEOUT_S)
    assert seen == sorted(seen)


def test_a_wait_ends_when_its_last_key_comes(store: Store, other: Store) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.wait, ["a", "b"], timeout=TIMEOUT_S)
        other.set("b", b"2")
        other.set("unrelated", b"")
        other.set("a", b"1")
        assert waiting.result(TIMEOUT_S) == [b"1", b"2"]


def test_a_wait_wants_all_keys_at_one_moment(store: Store, other: Store) -> None:
    other.set("a", b"1")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.wait, ["a", "b"], timeout=TIMEOUT_S)
        other.delete("a")
        other.set("b", b"2")
        assert not waiting.done()
        other.set("a", b"3")
        assert waiting.result(TIMEOUT_S) == [b"3", b"2"]


def test_many_waiters_are_all_woken(space: Space) -> None:
    clients = [space.open() for _ in range(THREADS)]
    with ThreadPoolExecutor() as pool:
        waiting = [
            pool.submit(client.wait, [f"k{n}", "go"], timeout=TIMEOUT_S)
            for client in clients
            for n in range(3)
        ]
        clients[0].multi_set({"k0": b"0", "k1": b"1", "k2": b"2"})
        clients[1].set("go", b"!")
        found = [done.result(TIMEOUT_S) for done in waiting]
    assert found == [[b"%d" % n, b"!"] for _ in clients for n in range(3)]


def test_a_waiting_client_still_works_in_other_threads(store: Store) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.wait, ["k"], timeout=TIMEOUT_S)
        for _ in range(5):
            store.add("n")
        store.set("k", b"v")
        assert waiting.result(TIMEOUT_S) == [b"v"]
    assert store.get("n") == b"5"


def test_closing_a_store_wakes_its_waiters(space: Space) -> None:
    store, other = space.open(), space.open()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.wait, ["k"], timeout=TIMEOUT_S)
        other.get("k")
        store.close()
        if space.backend.is_view:  # the store below is open, and its waits go on
            other.set("k", b"v")
            try:
                assert waiting.result(TIMEOUT_S) == [b"v"]
            except UsageError:
                pass  # it had not yet begun when the view was closed
        else:
            with pytest.raises(UsageError, match="closed"):
                waiting.result(TIMEOUT_S)
