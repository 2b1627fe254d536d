"""Views: closing one ends its watches, and leaves the store below as it was."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from holdfast.clock import Deadline
from holdfast.errors import UsageError
from holdfast.net.address import Address
from holdfast.store.fenced import FencedStore
from holdfast.store.memory import MemoryStore
from holdfast.store.ops import Op
from holdfast.store.prefix import PrefixStore
from holdfast.store.store import Store, Watch
from holdfast.store.view import View

R = TypeVar("R")

each_view = pytest.mark.parametrize(
    "view_of",
    [lambda store: PrefixStore(store, "p/"), lambda store: FencedStore(store, "g", b"1")],
    ids=["prefix", "fenced"],
)


@each_view
def test_closing_a_view_ends_its_watches_and_leaves_the_store_open(
    view_of: Callable[[Store], View],
) -> None:
    with MemoryStore() as store, ThreadPoolExecutor() as pool:
        view, other = view_of(store), view_of(store)
        reader = pool.submit(view.watch("k").next)
        view.close()
        view.close()
        with pytest.raises(UsageError, match="closed"):
            reader.result(30)
        with pytest.raises(UsageError, match="memory:// .* is closed"):
            view.get("k")
        with pytest.raises(UsageError, match="closed"):
            view.watch("k")
        assert other.get("k") is None
        store.set("k", b"v")
        assert store.get("k") == b"v"


@each_view
def test_a_view_is_where_its_store_is(view_of: Callable[[Store], View]) -> None:
    class Elsewhere(MemoryStore):
        addresses = (Address("far", 1),)

    with Elsewhere() as store:
        assert view_of(view_of(store)).addresses == store.addresses


@each_view
def test_a_watch_that_was_closed_is_forgotten(view_of: Callable[[Store], View]) -> None:
    with MemoryStore() as store:
        view = view_of(store)
        with view.watch("k"):
            assert len(view._watches) == 1
        assert not view._watches


class SlowToOpen(Store):
    """A store during whose opening of a watch the view is closed."""

    endpoint = "slow://"

    def __init__(self, below: Store) -> None:
        self.below = below
        self.view: View | None = None

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        raise NotImplementedError

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        assert self.view is not None
        self.view.close()
        return self.below.watch(key)

    def _close(self) -> None:
        pass


@each_view
def test_a_watch_opened_while_the_view_is_closed_is_closed(
    view_of: Callable[[Store], View],
) -> None:
    with MemoryStore() as below:
        store = SlowToOpen(below)
        store.view = view_of(store)
        watch = store.view.watch("k")
        with pytest.raises(UsageError, match="closed"):
            watch.next(timeout=0)
