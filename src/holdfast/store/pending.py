"""The changes that a watch has not delivered yet: for each key the newest, older ones forgotten.

Shared by every backend whose watches are fed with changes in the order of their revisions. The
memory that a slow reader costs is bounded by the number of keys that it watches.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.store.ops import Change

__all__ = ["Pending"]


class Pending:
    """Undelivered changes of one key, or of all keys under a prefix. Not thread-safe."""

    __slots__ = ("_key", "_newest", "_prefix")

    def __init__(self, key: str, prefix: bool) -> None:
        self._key = key
        self._prefix = prefix
        self._newest: dict[str, Change] = {}

    def __bool__(self) -> bool:
        """Say whether there is something to take."""
        return bool(self._newest)

    def offer(self, changes: Iterable[Change]) -> bool:
        """Keep those of the changes that are watched; say whether there was one."""
        kept = False
        for change in changes:
            if change.key == self._key or (self._prefix and change.key.startswith(self._key)):
                # Taken out first, so that delivery stays in the order of revisions.
                self._newest.pop(change.key, None)
                self._newest[change.key] = change
                kept = True
        return kept

    def take(self) -> Change | None:
        """Return the oldest of the kept changes and forget it; None if there is none."""
        if not self._newest:
            return None
        return self._newest.pop(next(iter(self._newest)))
