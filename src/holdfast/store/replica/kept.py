"""How much of the applied log a member keeps, for members that lag behind by a little."""

from __future__ import annotations

from collections import deque

__all__ = ["KEPT_BYTES", "KEPT_ENTRIES", "KeptEntries"]

KEPT_ENTRIES = 4096
KEPT_BYTES = 16 * 1024 * 1024


class KeptEntries:
    """The applied entries that the log still has, as (index, bytes).

    They grow to twice KEPT_ENTRIES, or KEPT_BYTES; then half of them is dropped.
    """

    def __init__(self) -> None:
        self._entries: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def add(self, index: int, size: int) -> None:
        """Note that an entry was applied."""
        self._entries.append((index, size))
        self._bytes += size

    def clear(self) -> None:
        """Note that the log begins anew, behind a snapshot."""
        self._entries.clear()
        self._bytes = 0

    def take_surplus(self) -> int | None:
        """Return up to which index the log is to be dropped now, or None."""
        if len(self._entries) <= 2 * KEPT_ENTRIES and self._bytes <= KEPT_BYTES:
            return None
        index = 0
        while len(self._entries) > KEPT_ENTRIES or self._bytes > KEPT_BYTES // 2:
            index, size = self._entries.popleft()
            self._bytes -= size
        return index
