"""The members of a round, read by pages from the store when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from holdfast.errors import UsageError
from holdfast.rendezvous.model import PAGE_MEMBERS, Keys, Member, Page, RoundRecord
from holdfast.store.store import Store

__all__ = ["Roll"]

READ_WITHIN_S = 60.0


class Roll(Sequence[Member]):
    """The members of a complete round by rank.

    Its length is known without the store. Asking for a member reads the page that it is on, once:
    that blocks for a minute at most, and fails as `Store.get` does. UsageError if the run has gone
    on since, and keeps that list no more.
    """

    def __init__(self, store: Store, keys: Keys, record: RoundRecord) -> None:
        self._store = store
        self._keys = keys
        self._record = record
        self._pages: dict[int, tuple[Member, ...]] = {}

    def __len__(self) -> int:
        return self._record.size

    @overload
    def __getitem__(self, index: int) -> Member: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Member, ...]: ...
    def __getitem__(self, index: int | slice) -> Member | tuple[Member, ...]:
        if isinstance(index, slice):
            return tuple(self[rank] for rank in range(*index.indices(len(self))))
        rank = range(len(self))[index]
        return self._page(rank // PAGE_MEMBERS)[rank % PAGE_MEMBERS]

    def _page(self, number: int) -> tuple[Member, ...]:
        if number not in self._pages:
            record = self._record
            key = self._keys.page(record.roll, number)
            value = self._store.get(key, timeout=READ_WITHIN_S)
            if value is None:
                raise UsageError(f"round {record.number} is long over: its members are not kept")
            self._pages[number] = Page.decode(value).members
        return self._pages[number]

    def __repr__(self) -> str:
        return f"<{len(self)} members of round {self._record.number}>"
