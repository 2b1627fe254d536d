"""A view of a store in which every key lies under a prefix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar, assert_never, cast

from holdfast.clock import Deadline
from holdfast.errors import TimeoutExpired
from holdfast.store.ops import (
    Add,
    AnyOp,
    Append,
    Change,
    CompareSet,
    Count,
    Delete,
    Entry,
    Get,
    LeaseGrant,
    LeaseKeep,
    LeaseRevoke,
    ListPrefix,
    MultiGet,
    MultiSet,
    Op,
    Set,
    Wait,
    check_key,
)
from holdfast.store.store import Store, Watch

__all__ = ["PrefixStore"]

R = TypeVar("R")


class PrefixStore(Store):
    """The keys of `store` that begin with `prefix`, without it. Leases are the store's own.

    Closing the view leaves the store open.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = check_key(prefix, "prefix")
        self.endpoint = f"{store.endpoint} under {prefix!r}"

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        try:
            result = self._store._perform(self._outward(cast(AnyOp, op)), deadline)
        except TimeoutExpired as error:
            error.waiting_for = tuple(key.removeprefix(self._prefix) for key in error.waiting_for)
            raise
        return cast(R, self._inward(result))

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        inner = self._store._open_watch(self._full(key), prefix, deadline)
        return _PrefixWatch(inner, len(self._prefix))

    def _close(self) -> None:
        pass

    def _full(self, key: str) -> str:
        return check_key(self._prefix + key, "key with its prefix")

    def _all(self, keys: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self._full, keys))

    def _outward(self, op: AnyOp) -> AnyOp:
        match op:
            case Get() | Set() | Add() | CompareSet() | Delete() | Append():
                return replace(op, key=self._full(op.key))
            case Wait() | MultiGet():
                return replace(op, keys=self._all(op.keys))
            case MultiSet():
                return replace(op, items=tuple((self._full(k), v) for k, v in op.items))
            case Count() | ListPrefix():
                return replace(op, prefix=self._full(op.prefix))
            case LeaseGrant() | LeaseKeep() | LeaseRevoke():
                return op
            case _:
                assert_never(op)

    def _inward(self, result: object) -> object:
        cut = len(self._prefix)
        if isinstance(result, Entry):
            return result._replace(key=result.key[cut:])
        if type(result) is tuple:  # of entries; a NamedTuple is not of this exact type
            return tuple(self._inward(entry) for entry in result)
        return result


class _PrefixWatch(Watch):
    def __init__(self, inner: Watch, cut: int) -> None:
        self._inner = inner
        self._cut = cut

    def _next(self, deadline: Deadline) -> Change:
        change = self._inner._next(deadline)
        return change._replace(key=change.key[self._cut :])

    def close(self) -> None:
        self._inner.close()
