"""A view under a prefix: keys go out with it and come back without it."""

from __future__ import annotations

import pytest

from holdfast.errors import TimeoutExpired, UsageError
from holdfast.store.memory import MemoryStore
from holdfast.store.ops import Change, Entry, Guarded, Set
from holdfast.store.prefix import PrefixStore


def test_keys_lie_under_the_prefix() -> None:
    with MemoryStore() as store:
        view = PrefixStore(store, "job/")
        view.set("a", b"1")
        view.multi_set({"b": b"2", "c": b"3"})
        view.add("n")
        view.append("log", b"x")
        view.compare_set("cas", None, b"!")
        keys = ["a", "b", "c", "cas", "log", "n"]
        assert [entry.key for entry in store.list_prefix()] == [f"job/{key}" for key in keys]
        assert [entry.key for entry in view.list_prefix()] == keys
        assert view.get_entry("a") == Entry("a", b"1", 1)
        assert view.multi_get(["a", "z"]) == [b"1", None]
        assert view.wait(["b", "c"]) == [b"2", b"3"]
        assert view.count("c") == 2
        assert view.delete("a")
        assert store.get("job/a") is None


def test_neighbours_are_not_seen() -> None:
    with MemoryStore() as store:
        store.multi_set({"a": b"", "p": b"", "p/": b"", "p0": b""})
        view = PrefixStore(store, "p/")
        assert view.count() == 1
        with view.watch("", prefix=True) as watch:
            assert watch.next(0) == Change("", b"", 1)
            store.set("p", b"2")
            view.set("x", b"3")
            assert watch.next(0).key == "x"


def test_views_of_views() -> None:
    with MemoryStore() as store:
        view = PrefixStore(PrefixStore(store, "a/"), "b/")
        view.set("k", b"v")
        assert store.get("a/b/k") == b"v"
        assert view.endpoint == "memory:// under 'a/' under 'b/'"
        with pytest.raises(TimeoutExpired) as caught:
            view.wait(["k", "x"], timeout=0)
        assert caught.value.waiting_for == ("x",)


def test_timeouts_name_the_keys_as_the_view_knows_them() -> None:
    with MemoryStore() as store:
        view = PrefixStore(store, "p/")
        with view.watch("k") as watch, pytest.raises(TimeoutExpired) as caught:
            watch.next(timeout=0)
        assert caught.value.waiting_for == ("k",)


def test_leases_are_the_stores_own() -> None:
    with MemoryStore() as store:
        view = PrefixStore(store, "p/")
        lease = view.grant_lease(60)
        view.set("k", b"", lease=lease)
        assert store.keep_lease(lease) == 60
        assert view.revoke_lease(lease)
        assert store.count() == 0


def test_a_key_too_long_with_its_prefix_is_refused() -> None:
    with MemoryStore() as store:
        view = PrefixStore(store, "p" * 8000)
        view.set("k" * 192, b"")
        for wrong in ("k" * 193, "k" * 8192):
            with pytest.raises(UsageError, match="key with its prefix"):
                view.get(wrong)


@pytest.mark.parametrize("prefix", ["", "p" * 8193])
def test_a_bad_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="prefix"):
        PrefixStore(MemoryStore(), prefix)


def test_closing_the_view_that_owns_the_store_closes_it() -> None:
    store = MemoryStore()
    PrefixStore(store, "p/", owner=True).close()
    with pytest.raises(UsageError, match="closed"):
        store.get("k")


def test_a_guard_lies_under_the_prefix_like_the_keys_of_its_write() -> None:
    with MemoryStore() as store:
        view = PrefixStore(store, "p/")
        view.set("g", b"1")
        guarded: Guarded[int] = Guarded("g", b"1", Set("k", b"v"))
        assert view._run(guarded, None) == 2
        assert store.get("p/k") == b"v"
