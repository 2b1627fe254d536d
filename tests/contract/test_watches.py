"""The contract of every backend: a watch never misses the final state of a key (K3)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import TimeoutExpired, UsageError
from holdfast.store.ops import Change
from holdfast.store.store import Store, Watch
from tests.contract.conftest import Space

TIMEOUT_S = 30.0


def follow(watch: Watch, until: Change) -> list[Change]:
    """Read changes up to the one that is waited for."""
    seen: list[Change] = []
    while not seen or seen[-1] != until:
        seen.append(watch.next(TIMEOUT_S))
    return seen


def test_a_watch_of_a_key_begins_with_what_is_there(store: Store, other: Store) -> None:
    revision = store.set("k", b"v")
    with other.watch("k") as watch:
        assert watch.next(TIMEOUT_S) == Change("k", b"v", revision)


def test_a_watch_of_a_missing_key_begins_with_its_creation(store: Store, other: Store) -> None:
    with other.watch("k") as watch:
        with pytest.raises(TimeoutExpired) as caught:
            watch.next(timeout=0.02)
        assert caught.value.waiting_for == ("k",)
        revision = store.set("k", b"v")
        assert watch.next(TIMEOUT_S) == Change("k", b"v", revision)


def test_a_watch_sees_writes_of_every_kind(store: Store, other: Store) -> None:
    with other.watch("k") as watch:
        store.set("k", b"1")
        assert watch.next(TIMEOUT_S).value == b"1"
        store.add("k")
        assert watch.next(TIMEOUT_S).value == b"2"
        store.append("k", b"!")
        assert watch.next(TIMEOUT_S).value == b"2!"
        store.compare_set("k", b"2!", b"3")
        assert watch.next(TIMEOUT_S).value == b"3"
        store.multi_set({"k": b"4"})
        assert watch.next(TIMEOUT_S).value == b"4"
        store.delete("k")
        assert watch.next(TIMEOUT_S).value is None
        store.compare_set("k", None, b"5")
        assert watch.next(TIMEOUT_S).value == b"5"
        store.compare_set("k", b"5", None)
        assert watch.next(TIMEOUT_S).value is None


def test_a_deletion_has_a_revision_of_its_own(store: Store, other: Store) -> None:
    with other.watch("k") as watch:
        first = store.set("k", b"v")
        assert watch.next(TIMEOUT_S).revision == first
        store.delete("k")
        gone = watch.next(TIMEOUT_S)
        assert gone.value is None
        assert gone.revision > first
        assert store.set("k", b"v") > gone.revision


def test_a_watch_of_a_key_sees_no_other_key(store: Store, other: Store) -> None:
    store.multi_set({"key/1": b"", "ke": b""})
    with other.watch("key") as watch:
        store.multi_set({"key2": b"", "key/": b"", "KEY": b""})
        store.delete("key/1")
        revision = store.set("key", b"v")
        assert watch.next(TIMEOUT_S) == Change("key", b"v", revision)


def test_a_watch_of_a_prefix_sees_all_keys_under_it(store: Store, other: Store) -> None:
    store.multi_set({"p/b": b"1", "p/a": b"1", "q": b"1", "p": b"1"})
    there = [Change(*entry) for entry in store.list_prefix("p/")]
    assert [change.key for change in there] == ["p/a", "p/b"]
    with other.watch("p/", prefix=True) as watch:
        assert [watch.next(TIMEOUT_S) for _ in range(2)] == there
        store.set("p", b"2")
        store.set("q/p/", b"2")
        second = store.set("p/c", b"2")
        assert watch.next(TIMEOUT_S) == Change("p/c", b"2", second)
        store.delete("p/a")
        gone = watch.next(TIMEOUT_S)
        assert (gone.key, gone.value) == ("p/a", None)


def test_a_watch_of_the_empty_prefix_sees_everything(store: Store, other: Store) -> None:
    with other.watch("", prefix=True) as watch:
        revision = store.set("anything", b"")
        assert watch.next(TIMEOUT_S) == Change("anything", b"", revision)


def test_a_watch_of_a_key_needs_a_key(store: Store) -> None:
    with pytest.raises(UsageError, match="must not be empty"):
        store.watch("")


def test_a_slow_reader_gets_the_newest_of_each_key_and_nothing_older_after_it(
    store: Store, other: Store
) -> None:
    with other.watch("p/", prefix=True) as watch:
        for number in range(50):
            for key in ("p/a", "p/b", "p/gone"):
                store.set(key, b"%d" % number)
        store.delete("p/gone")
        last = store.set("p/last", b"")
        seen = follow(watch, Change("p/last", b"", last))
    revisions = [change.revision for change in seen]
    assert revisions == sorted(revisions)
    newest = {change.key: change.value for change in seen}
    assert newest == {"p/a": b"49", "p/b": b"49", "p/gone": None, "p/last": b""}


def test_a_reader_beside_a_writer_ends_with_the_final_state(store: Store, other: Store) -> None:
    with other.watch("n") as watch, ThreadPoolExecutor() as pool:
        writer = pool.submit(lambda: [store.add("n") for _ in range(100)])
        totals: list[int] = []
        while not totals or totals[-1] != 100:
            totals.append(int(watch.next(TIMEOUT_S).value or b"0"))
        writer.result()
    assert totals == sorted(set(totals))


def test_watches_are_independent(store: Store, other: Store) -> None:
    with other.watch("k") as one, other.watch("k") as two, store.watch("k") as three:
        revision = store.set("k", b"v")
        for watch in (one, two, three):
            assert watch.next(TIMEOUT_S) == Change("k", b"v", revision)
        one.close()
        revision = store.set("k", b"w")
        assert two.next(TIMEOUT_S) == three.next(TIMEOUT_S) == Change("k", b"w", revision)


def test_a_watch_can_be_iterated(store: Store, other: Store) -> None:
    store.multi_set({"p/1": b"", "p/2": b""})
    with other.watch("p/", prefix=True) as watch:
        found = []
        for change in watch:
            found.append(change.key)
            if len(found) == 2:
                break
    assert found == ["p/1", "p/2"]


def test_a_closed_watch_refuses(store: Store) -> None:
    store.set("k", b"v")
    watch = store.watch("k")
    watch.close()
    watch.close()
    with pytest.raises(UsageError, match="closed"):
        watch.next(timeout=0)
    assert store.get("k") == b"v"


def test_closing_a_watch_wakes_its_reader(store: Store) -> None:
    watch = store.watch("k")
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(watch.next)
        watch.close()
        with pytest.raises(UsageError, match="closed"):
            reader.result(TIMEOUT_S)


def test_closing_a_store_wakes_the_readers_of_its_watches(space: Space) -> None:
    store = space.open()
    watch = store.watch("k")
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(watch.next)
        store.close()
        with pytest.raises(UsageError, match="closed"):
            reader.result(TIMEOUT_S)


def test_a_watch_with_no_time_gives_what_is_pending_or_times_out(store: Store) -> None:
    with store.watch("k") as watch:
        with pytest.raises(TimeoutExpired):
            watch.next(timeout=0)
        store.set("k", b"v")
        assert watch.next(TIMEOUT_S).value == b"v"


def test_many_watches_opened_and_closed_cost_nothing_in_the_end(store: Store) -> None:
    for _ in range(50):
        store.watch("k").close()
    with store.watch("k") as watch:
        store.set("k", b"v")
        assert watch.next(TIMEOUT_S).value == b"v"
