"""How much of the log is kept: MB-6 of the machine."""

from __future__ import annotations

from holdfast.store.replica.kept import KEPT_BYTES, KEPT_ENTRIES, KeptEntries


def test_small_entries_are_dropped_by_their_number() -> None:
    kept = KeptEntries()
    for index in range(1, 2 * KEPT_ENTRIES + 1):
        kept.add(index, 1)
        assert kept.take_surplus() is None
    kept.add(2 * KEPT_ENTRIES + 1, 1)
    assert kept.take_surplus() == KEPT_ENTRIES + 1
    assert kept.take_surplus() is None


def test_large_entries_are_dropped_by_their_bytes() -> None:
    kept = KeptEntries()
    kept.add(1, KEPT_BYTES)
    assert kept.take_surplus() is None
    kept.add(2, 1)
    assert kept.take_surplus() == 1
    kept.add(3, KEPT_BYTES)
    kept.clear()
    kept.add(4, KEPT_BYTES)
    assert kept.take_surplus() is None
