"""Pending changes: the newest of each key, in the order of their revisions."""

from __future__ import annotations

from holdfast.store.ops import Change
from holdfast.store.pending import Pending


def drain(pending: Pending) -> list[Change]:
    found = []
    while (change := pending.take()) is not None:
        found.append(change)
    return found


def test_nothing_is_pending_at_first() -> None:
    pending = Pending("k", prefix=False)
    assert not pending
    assert pending.take() is None
    pending.offer([Change("k", None, 1)])
    assert pending


def test_a_key_alone() -> None:
    pending = Pending("k", prefix=False)
    assert not pending.offer([Change("k/1", b"", 1), Change("other", b"", 2)])
    assert pending.offer([Change("k", b"", 3), Change("j", b"", 4)])
    assert drain(pending) == [Change("k", b"", 3)]


def test_a_prefix() -> None:
    pending = Pending("k", prefix=True)
    assert pending.offer(Change(key, b"", n) for n, key in enumerate(["j", "k", "k/1", "ok"]))
    assert drain(pending) == [Change("k", b"", 1), Change("k/1", b"", 2)]


def test_the_newest_stands_for_all_and_takes_its_place_in_order() -> None:
    pending = Pending("", prefix=True)
    pending.offer([Change("a", b"1", 1), Change("b", b"1", 2), Change("a", None, 3)])
    assert drain(pending) == [Change("b", b"1", 2), Change("a", None, 3)]
