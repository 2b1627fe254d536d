"""A view of a store whose writes are refused once a key has changed.

The fencing token is checked at the resource, in the same moment as the write: a process that was
paused, and does not know that its time is over, can do no harm, however late it wakes up.
"""

from __future__ import annotations

from typing import TypeVar

from holdfast.clock import Deadline
from holdfast.errors import UsageError
from holdfast.store.ops import KEY_WRITES, Guarded, Op, check_key, check_value
from holdfast.store.store import Store, Watch
from holdfast.store.view import View, ViewWatch

__all__ = ["FencedStore"]

R = TypeVar("R")


class FencedStore(View):
    """`store`, for as long as `key` holds `value`: after that every write raises Fenced.

    Reading, waiting, watching and leases go on as before. A write has one guard, so a fenced store
    cannot be fenced again. Closing the view ends its watches and leaves the store open.
    """

    def __init__(self, store: Store, key: str, value: bytes) -> None:
        self._key = check_key(key)
        self._value = check_value(value)
        super().__init__(store, f"guarded by {key!r}")

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        self._check_open()
        if isinstance(op, Guarded):
            raise UsageError(f"guard {op.key!r:.80}: {self.endpoint} has a guard already")
        if isinstance(op, KEY_WRITES):
            guarded: Guarded[R] = Guarded(self._key, self._value, op)
            return self._store._perform(guarded, deadline)
        return self._store._perform(op, deadline)

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        self._check_open()
        return self._keep(ViewWatch(self._store._open_watch(key, prefix, deadline), self._watches))
