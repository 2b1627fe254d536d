"""The contract of every backend: what each operation reads, writes and returns."""

from __future__ import annotations

import pytest

from holdfast.errors import TimeoutExpired, UsageError
from holdfast.store.ops import INT_MAX, INT_MIN, Entry, Swap
from holdfast.store.store import Store
from tests.contract.conftest import Space


def test_get_returns_none_for_a_missing_key_without_waiting(store: Store) -> None:
    """K5"""
    assert store.get("missing", timeout=None) is None
    assert store.get_entry("missing", timeout=None) is None


def test_a_write_is_seen_by_every_client(store: Store, other: Store) -> None:
    """K2"""
    revision = store.set("k", b"v")
    assert other.get("k") == b"v"
    assert other.get_entry("k") == Entry("k", b"v", revision)
    assert store.get("k") == b"v"


def test_set_replaces(store: Store, other: Store) -> None:
    first = store.set("k", b"one")
    second = other.set("k", b"two")
    assert second > first
    assert store.get_entry("k") == Entry("k", b"two", second)


def test_delete_says_whether_the_key_was_there(store: Store, other: Store) -> None:
    store.set("k", b"v")
    assert other.delete("k") is True
    assert other.delete("k") is False
    assert store.get("k") is None


def test_delete_prefix_removes_all_keys_below_it_and_no_other(store: Store, other: Store) -> None:
    store.multi_set(dict.fromkeys(("a", "a/", "a/1", "a/é/2", "a0", "b/1"), b"v"))
    with store.watch("a/1") as watch:
        assert watch.next(10).value == b"v"
        other.delete_prefix("a/")
        assert watch.next(10).value is None
    assert [entry.key for entry in store.list_prefix()] == ["a", "a0", "b/1"]
    other.delete_prefix("a/")  # nothing is there
    other.delete_prefix("b/1")
    assert store.count() == 2


def test_an_empty_prefix_deletes_nothing(store: Store) -> None:
    store.set("k", b"v")
    with pytest.raises(UsageError, match=r"^prefix '': must not be empty$"):
        store.delete_prefix("")
    assert store.get("k") == b"v"


def test_revisions_increase_over_all_changes_and_over_a_deletion(store: Store) -> None:
    revisions = [store.set("a", b"1")]
    revisions.append(store.set("b", b"1"))
    revisions.append(store.multi_set({"a": b"2", "c": b"2"}))
    store.add("n")
    revisions.append(_revision(store, "n"))
    store.append("a", b"+")
    revisions.append(_revision(store, "a"))
    revisions.append(store.compare_set("b", b"1", b"2").revision)
    store.delete("b")
    revisions.append(store.set("b", b"1"))
    assert revisions == sorted(set(revisions))
    assert revisions[0] > 0
    assert _revision(store, "c") == revisions[2]


def _revision(store: Store, key: str) -> int:
    entry = store.get_entry(key)
    assert entry is not None
    return entry.revision


# Counters.


def test_add_counts_from_zero_and_keeps_decimal_text(store: Store, other: Store) -> None:
    assert store.add("n") == 1
    assert other.add("n", 41) == 42
    assert store.add("n", 0) == 42
    assert store.add("n", -50) == -8
    assert other.get("n") == b"-8"


def test_add_to_what_set_wrote(store: Store) -> None:
    store.set("n", b"-007")
    assert store.add("n", 10) == 3
    assert store.get("n") == b"3"


@pytest.mark.parametrize("value", [b"", b"-", b"1.5", b"0x10", b"1_0", b" 1", b"+1", b"\xff\xfe"])
def test_add_refuses_what_is_no_number_and_changes_nothing(store: Store, value: bytes) -> None:
    store.set("n", value)
    with pytest.raises(UsageError, match=r"n'.*not a decimal integer"):
        store.add("n")
    assert store.get("n") == value


def test_add_stays_within_64_bits(store: Store) -> None:
    assert store.add("n", INT_MAX) == INT_MAX
    with pytest.raises(UsageError, match="64 bits"):
        store.add("n")
    assert store.add("n", INT_MIN) == -1
    assert store.add("n", INT_MIN + 1) == INT_MIN
    with pytest.raises(UsageError, match="64 bits"):
        store.add("n", -1)
    assert store.get("n") == b"%d" % INT_MIN


# Compare and set.


def test_compare_set_creates_only_what_is_absent(store: Store, other: Store) -> None:
    made = store.compare_set("k", None, b"mine")
    assert made == Swap(True, b"mine", _revision(store, "k"))
    refused = other.compare_set("k", None, b"theirs")
    assert refused == Swap(False, b"mine", made.revision)
    assert store.get("k") == b"mine"


def test_compare_set_replaces_only_what_is_expected(store: Store, other: Store) -> None:
    first = store.set("k", b"1")
    assert other.compare_set("k", b"0", b"2") == Swap(False, b"1", first)
    swapped = other.compare_set("k", b"1", b"2")
    assert swapped.ok
    assert swapped.value == b"2"
    assert swapped.revision > first
    assert store.get_entry("k") == Entry("k", b"2", swapped.revision)


def test_compare_set_of_a_missing_key_fails_with_nothing(store: Store) -> None:
    assert store.compare_set("k", b"1", b"2") == Swap(False, None, 0)
    assert store.compare_set("k", b"1", None) == Swap(False, None, 0)
    assert store.get("k") is None


def test_compare_set_tells_an_empty_value_from_absence(store: Store) -> None:
    assert not store.compare_set("k", b"", b"x").ok
    revision = store.set("k", b"")
    assert store.compare_set("k", None, b"x") == Swap(False, b"", revision)
    assert store.compare_set("k", b"", b"x").ok


def test_compare_set_deletes_only_what_is_expected(store: Store) -> None:
    revision = store.set("k", b"1")
    assert store.compare_set("k", b"2", None) == Swap(False, b"1", revision)
    assert store.compare_set("k", b"1", None) == Swap(True, None, 0)
    assert store.get("k") is None


def test_compare_set_of_absence_by_absence_changes_nothing(store: Store) -> None:
    before = store.set("other", b"")
    assert store.compare_set("k", None, None) == Swap(True, None, 0)
    assert store.multi_set({}) == before


def test_compare_set_that_writes_the_same_value_takes_a_revision(store: Store) -> None:
    first = store.set("k", b"1")
    swap = store.compare_set("k", b"1", b"1")
    assert swap.ok
    assert swap.revision > first


# Append.


def test_append_grows_a_value_and_returns_its_length(store: Store, other: Store) -> None:
    assert store.append("k", b"abc") == 3
    assert other.append("k", b"\x00\xff") == 5
    assert store.append("k", b"") == 5
    assert store.get("k") == b"abc\x00\xff"


def test_append_of_nothing_makes_the_key(store: Store) -> None:
    assert store.append("k", b"") == 0
    assert store.get("k") == b""


# Several keys.


def test_multi_get_keeps_the_order_of_its_keys(store: Store) -> None:
    store.multi_set({"a": b"1", "b": b"", "c": b"3"})
    assert store.multi_get(["c", "missing", "a", "b", "c"]) == [b"3", None, b"1", b"", b"3"]
    assert store.multi_get(key for key in ["a"]) == [b"1"]
    assert store.multi_get([]) == []


def test_multi_set_writes_at_one_revision(space: Space, store: Store, other: Store) -> None:
    space.needs_atomic_multi_set()
    revision = store.multi_set({"a": b"1", "b": b"2"})
    assert other.list_prefix() == [Entry("a", b"1", revision), Entry("b", b"2", revision)]


def test_multi_set_of_nothing_changes_nothing(store: Store) -> None:
    revision = store.set("k", b"v")
    assert store.multi_set({}) == revision
    assert store.count() == 1


def test_count_and_list_by_prefix(store: Store, other: Store) -> None:
    keys = ["a", "a/", "a/1", "a/10", "a/2", "aa", "b", "é", "日"]
    store.multi_set({key: key.encode() for key in reversed(keys)})
    assert other.count() == len(keys)
    assert other.count("a/") == 4
    assert other.count("a") == 6
    assert other.count("nothing") == 0
    assert [entry.key for entry in other.list_prefix()] == keys
    assert [entry.key for entry in other.list_prefix("a/")] == ["a/", "a/1", "a/10", "a/2"]
    assert [entry.value for entry in other.list_prefix("a/1")] == [b"a/1", b"a/10"]
    assert other.list_prefix("nothing") == []
    other.delete("a/1")
    assert store.count("a/") == 3


# Waiting.


def test_wait_returns_at_once_when_all_keys_are_there(store: Store) -> None:
    store.multi_set({"a": b"1", "b": b"2"})
    assert store.wait(["b", "a", "b"]) == [b"2", b"1", b"2"]
    assert store.wait([]) == []


def test_wait_that_times_out_names_what_is_missing(store: Store) -> None:
    store.set("here", b"")
    with pytest.raises(TimeoutExpired, match=r"missing.*gone") as caught:
        store.wait(["gone 1", "here", "gone 2"], timeout=0.05)
    assert caught.value.waiting_for == ("gone 1", "gone 2")
    assert not caught.value.maybe_applied


def test_wait_with_no_time_at_all_times_out(store: Store) -> None:
    with pytest.raises(TimeoutExpired):
        store.wait(["gone"], timeout=0)


def test_an_empty_value_ends_a_wait(store: Store) -> None:
    store.set("k", b"")
    assert store.wait(["k"], timeout=5) == [b""]
