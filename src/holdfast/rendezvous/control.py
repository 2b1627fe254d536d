"""What a node knows of the keys that control its run: the newest value of each.

Pure, as `machine.py` of which it is a part.
"""

from __future__ import annotations

__all__ = ["Control"]


class Control:
    """The newest value of each key, and the store's revision at which it was written."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, bytes | None]] = {}

    def is_news(self, key: str, value: bytes | None, revision: int) -> bool:
        """Take a value, unless a newer one is known; revision 0 is for what was read just now."""
        if revision and revision <= self.revision(key):
            return False
        self._known[key] = (revision, value)
        return True

    def value(self, key: str) -> bytes | None:
        """Return the newest value of a key; None if there is none."""
        return self._known.get(key, (0, None))[1]

    def revision(self, key: str) -> int:
        """Return when it was written; 0 if nothing is known."""
        return self._known.get(key, (0, None))[0]
