"""The contract of every backend: a guarded write happens only while its guard holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from holdfast.errors import Fenced, LeaseLost, UsageError
from holdfast.store.fenced import FencedStore
from holdfast.store.ops import Swap
from holdfast.store.prefix import PrefixStore
from holdfast.store.store import Store
from tests.contract.backends import BACKENDS
from tests.contract.conftest import Space

TIMEOUT_S = 60.0
THREADS = 4


pytestmark = pytest.mark.parametrize(
    "backend",
    [backend for backend in BACKENDS if not backend.has_guard],
    ids=lambda backend: backend.name,
    indirect=True,
)


@dataclass(frozen=True)
class View:
    """A guarded way into a store: a view, and the key below that guards it."""

    store: Store
    guard: str
    prefix: str = ""


VIEWS: dict[str, Callable[[Store], View]] = {
    "fenced": lambda store: View(FencedStore(store, "g", b"1"), "g"),
    "fenced(prefix)": lambda store: View(
        FencedStore(PrefixStore(store, "p/"), "g", b"1"), "p/g", "p/"
    ),
    "prefix(fenced)": lambda store: View(
        PrefixStore(FencedStore(store, "g", b"1"), "p/"), "g", "p/"
    ),
}


@pytest.fixture(params=VIEWS)
def view(store: Store, request: pytest.FixtureRequest) -> View:
    found = VIEWS[request.param](store)
    store.set(found.guard, b"1")
    return found


WRITES: list[tuple[str, Callable[[Store], object], object, dict[str, bytes]]] = [
    ("set", lambda s: s.set("k", b"v") > 0, True, {"k": b"v"}),
    ("multi_set", lambda s: s.multi_set({"a": b"1", "b": b"2"}) > 0, True, {"a": b"1", "b": b"2"}),
    ("multi_set nothing", lambda s: s.multi_set({}) > 0, True, {}),
    ("add", lambda s: s.add("n", 3), 8, {"n": b"8"}),
    ("append", lambda s: s.append("log", b"b"), 2, {"log": b"ab"}),
    ("create", lambda s: s.compare_set("c", None, b"v").ok, True, {"c": b"v"}),
    ("swap", lambda s: s.compare_set("n", b"5", b"6").ok, True, {"n": b"6"}),
    ("take", lambda s: s.compare_set("n", b"5", None), Swap(True, None, 0), {"n": b""}),
    ("fail to swap", lambda s: s.compare_set("n", b"x", b"6")[:2], (False, b"5"), {}),
    ("leave absent", lambda s: s.compare_set("c", None, None), Swap(True, None, 0), {}),
    ("delete", lambda s: s.delete("n"), True, {"n": b""}),
    ("delete nothing", lambda s: s.delete("c"), False, {}),
]
each_write = pytest.mark.parametrize(
    ("write", "result", "after"), [pytest.param(*case[1:], id=case[0]) for case in WRITES]
)


def begin(other: Store, view: View) -> dict[str, bytes]:
    other.multi_set({f"{view.prefix}n": b"5", f"{view.prefix}log": b"a"})
    return state(other, view)


def state(other: Store, view: View) -> dict[str, bytes]:
    """Return the keys that the view shows, without the guard."""
    cut = len(view.prefix)
    found = {entry.key: entry.value for entry in other.list_prefix(view.prefix)}
    found.pop(view.guard, None)
    return {key[cut:]: value for key, value in found.items()}


@each_write
def test_while_the_guard_holds_a_write_is_as_without_it(
    other: Store,
    view: View,
    write: Callable[[Store], object],
    result: object,
    after: dict[str, bytes],
) -> None:
    before = begin(other, view)
    assert write(view.store) == result
    expected = {key: value for key, value in (before | after).items() if value}
    assert state(other, view) == expected


@each_write
@pytest.mark.parametrize("change", [b"2", b"", None], ids=["changed", "emptied", "vanished"])
def test_when_the_guard_does_not_hold_nothing_is_written(
    other: Store,
    view: View,
    write: Callable[[Store], object],
    result: object,
    after: dict[str, bytes],
    change: bytes | None,
) -> None:
    before = begin(other, view)
    if change is None:
        other.delete(view.guard)
    else:
        other.set(view.guard, change)
    revisions = [entry.revision for entry in other.list_prefix()]
    with pytest.raises(Fenced, match="has changed"):
        write(view.store)
    assert state(other, view) == before
    assert [entry.revision for entry in other.list_prefix()] == revisions
    other.set(view.guard, b"1")
    assert write(view.store) == result


def test_a_guard_on_a_lease_ends_with_it(other: Store, view: View) -> None:
    lease = other.grant_lease(60)
    other.set(view.guard, b"1", lease=lease)
    assert view.store.add("n") == 1
    other.revoke_lease(lease)
    with pytest.raises(Fenced):
        view.store.add("n")


def test_fenced_is_told_before_all_else(other: Store, view: View) -> None:
    dead = other.grant_lease(60)
    other.revoke_lease(dead)
    view.store.set("text", b"no number")
    with pytest.raises(LeaseLost):
        view.store.set("k", b"", lease=dead)
    with pytest.raises(UsageError, match="not a decimal"):
        view.store.add("text")
    other.set(view.guard, b"2")
    with pytest.raises(Fenced):
        view.store.set("k", b"", lease=dead)
    with pytest.raises(Fenced):
        view.store.add("text")
    assert view.store.get("text") == b"no number"


def test_a_guarded_key_hangs_on_its_lease(other: Store, view: View) -> None:
    lease = view.store.grant_lease(60)
    view.store.set("k", b"v", lease=lease)
    assert view.store.compare_set("c", None, b"v", lease=lease).ok
    other.revoke_lease(lease)
    assert state(other, view) == {}


@contextmanager
def writing(stores: list[Store], write: Callable[[Store, int], int]) -> Iterator[list[int]]:
    """Let threads write until they are fenced; at the end the list holds what writes returned."""
    returned: list[int] = []

    def work(number: int) -> None:
        try:
            while True:
                returned.append(write(stores[number], number))
        except Fenced:
            pass

    with ThreadPoolExecutor(THREADS) as pool:
        working = [pool.submit(work, number) for number in range(len(stores))]
        yield returned
        for done in working:
            done.result(TIMEOUT_S)


def test_no_write_is_applied_after_the_guards_change(space: Space) -> None:
    space.needs_atomic_guards()
    boss = space.open()
    boss.set("g", b"1")
    stores: list[Store] = [FencedStore(space.open(), "g", b"1") for _ in range(THREADS)]
    with (
        boss.watch("n3") as watch,
        writing(stores, lambda store, number: store.set(f"n{number}", b"")) as revisions,
    ):
        watch.next(TIMEOUT_S)  # all are at work, as far as one can tell
        changed = boss.set("g", b"2")
    assert revisions
    assert max(revisions) < changed
    assert all(entry.revision < changed for entry in boss.list_prefix("n"))


def test_every_add_before_the_change_counts_and_none_after(space: Space) -> None:
    space.needs_atomic_guards()
    boss = space.open()
    boss.set("g", b"1")
    stores: list[Store] = [FencedStore(space.open(), "g", b"1") for _ in range(THREADS)]
    with (
        boss.watch("n") as watch,
        writing(stores, lambda store, number: store.add("n")) as sums,
    ):
        while watch.next(TIMEOUT_S).value == b"1":
            pass
        changed = boss.set("g", b"2")
    entry = boss.get_entry("n")
    assert entry is not None
    assert entry.revision < changed
    assert sorted(sums) == list(range(1, int(entry.value) + 1))
