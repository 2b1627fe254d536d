"""What the views of a store have in common: closing one ends its watches, and not the store."""

from __future__ import annotations

from holdfast.clock import Deadline
from holdfast.errors import UsageError
from holdfast.net.address import Address
from holdfast.store.ops import Change
from holdfast.store.store import Store, Watch

__all__ = ["View", "ViewWatch"]


class View(Store):
    """A store behind another one; `how` says in its endpoint what is different."""

    def __init__(self, store: Store, how: str) -> None:
        self._store = store
        self.endpoint = f"{store.endpoint} {how}"
        self._watches: set[ViewWatch] = set()
        self._closed = False

    @property
    def addresses(self) -> tuple[Address, ...]:
        return self._store.addresses

    def _close(self) -> None:
        self._closed = True
        for watch in tuple(self._watches):
            watch.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the store {self.endpoint} is closed")

    def _keep(self, watch: ViewWatch) -> ViewWatch:
        """Take note of a watch that was opened, to end it with the view."""
        self._watches.add(watch)
        if self._closed:  # by another thread, which may have missed this watch
            watch.close()
        return watch


class ViewWatch(Watch):
    """A watch of a view, which is among the view's `siblings` until it is closed."""

    def __init__(self, inner: Watch, siblings: set[ViewWatch]) -> None:
        self._inner = inner
        self._siblings = siblings

    def _next(self, deadline: Deadline) -> Change:
        return self._inner._next(deadline)

    def close(self) -> None:
        self._siblings.discard(self)
        self._inner.close()
