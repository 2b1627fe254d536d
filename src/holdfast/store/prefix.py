"""A view of a store in which every key lies under a prefix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
    DeletePrefix,
    Entry,
    Get,
    Guarded,
    KeyWrite,
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
from holdfast.store.view import View, ViewWatch

__all__ = ["PrefixStore"]

R = TypeVar("R")


class PrefixStore(View):
    """The keys of `store` that begin with `prefix`, without it. Leases are the store's own.

    Closing the view ends its watches; it closes the store too if the view is its `owner`.
    """

    def __init__(self, store: Store, prefix: str, *, owner: bool = False) -> None:
        self._owner = owner
        self._prefix = check_key(prefix, "prefix")
        super().__init__(store, f"under {prefix!r}")

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        self._check_open()
        with _short_names(self._prefix):
            result = self._store._perform(self._outward(cast(AnyOp, op)), deadline)
        return cast(R, self._inward(result))

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        self._check_open()
        with _short_names(self._prefix):
            inner = self._store._open_watch(self._full(key), prefix, deadline)
        return self._keep(_PrefixWatch(inner, self._watches, self._prefix))

    def _close(self) -> None:
        super()._close()
        if self._owner:
            self._store.close()

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
            case Count() | ListPrefix() | DeletePrefix():
                return replace(op, prefix=self._full(op.prefix))
            case Guarded():
                return replace(op, key=self._full(op.key), op=cast(KeyWrite, self._outward(op.op)))
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


class _PrefixWatch(ViewWatch):
    def __init__(self, inner: Watch, siblings: set[ViewWatch], prefix: str) -> None:
        super().__init__(inner, siblings)
        self._prefix = prefix

    def _next(self, deadline: Deadline) -> Change:
        with _short_names(self._prefix):
            change = super()._next(deadline)
        return change._replace(key=change.key[len(self._prefix) :])


@contextmanager
def _short_names(prefix: str) -> Iterator[None]:
    """Take the prefix off the keys that a timeout of the store below names."""
    try:
        yield
    except TimeoutExpired as error:
        error.waiting_for = tuple(key.removeprefix(prefix) for key in error.waiting_for)
        raise
