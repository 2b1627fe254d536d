"""A fenced view: every write under its guard, everything else as it is below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import Fenced, UsageError
from holdfast.store.fenced import FencedStore
from holdfast.store.memory import MemoryStore
from holdfast.store.ops import Change
from holdfast.store.prefix import PrefixStore
from holdfast.store.store import Store

WRITES: list[Callable[[Store], object]] = [
    lambda s: s.set("k", b"v"),
    lambda s: s.add("n"),
    lambda s: s.append("log", b"x"),
    lambda s: s.compare_set("c", None, b"v"),
    lambda s: s.multi_set({"a": b"", "b": b""}),
    lambda s: s.delete("old"),
]


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    made.multi_set({"g": b"1", "old": b""})
    return made


@pytest.mark.parametrize("write", WRITES)
def test_writes_happen_while_the_guard_holds_and_not_after(
    store: MemoryStore, write: Callable[[Store], object]
) -> None:
    view = FencedStore(store, "g", b"1")
    write(view)
    store.set("g", b"2")
    before = store.list_prefix()
    with pytest.raises(Fenced, match="the guard 'g' has changed"):
        write(view)
    assert store.list_prefix() == before


def test_all_else_goes_on(store: MemoryStore) -> None:
    view = FencedStore(store, "g", b"other")
    lease = view.grant_lease(60)
    store.set("k", b"v", lease=lease)
    assert view.get("k") == b"v"
    assert view.wait(["k"], timeout=0) == [b"v"]
    with view.watch("k") as watch:
        assert watch.next(0) == Change("k", b"v", 2)
    assert view.keep_lease(lease) == 60
    assert view.revoke_lease(lease)
    assert view.count() == 2


def test_a_view_may_end_its_own_time(store: MemoryStore) -> None:
    view = FencedStore(store, "g", b"1")
    assert view.compare_set("g", b"1", b"2").ok
    with pytest.raises(Fenced):
        view.compare_set("g", b"2", b"1")


def test_views_may_lie_over_each_other(store: MemoryStore) -> None:
    inside = PrefixStore(FencedStore(store, "g", b"1"), "p/")  # guarded by g
    outside = FencedStore(PrefixStore(store, "p/"), "g", b"1")  # guarded by p/g
    inside.set("g", b"1")
    outside.set("k", b"v")
    assert store.get("p/k") == b"v"
    store.delete("g")
    with pytest.raises(Fenced):
        inside.set("k", b"w")
    outside.set("k", b"w")
    store.delete("p/g")
    with pytest.raises(Fenced):
        outside.set("k", b"x")
    assert store.get("p/k") == b"w"


def test_a_second_guard_is_refused_and_not_forgotten(store: MemoryStore) -> None:
    view = FencedStore(PrefixStore(FencedStore(store, "g", b"1"), "p/"), "g", b"1")
    with pytest.raises(UsageError, match="guard 'p/g': memory:// guarded by 'g' has a guard"):
        view.set("k", b"")
    assert view.get("k") is None


def test_it_says_where_it_is(store: MemoryStore) -> None:
    assert repr(FencedStore(store, "g", b"1")) == "<FencedStore memory:// guarded by 'g'>"


@pytest.mark.parametrize(("key", "value"), [("", b""), ("g", "text"), (None, b"")])
def test_a_wrong_guard_is_refused(store: MemoryStore, key: Any, value: Any) -> None:
    with pytest.raises(UsageError):
        FencedStore(store, key, value)
