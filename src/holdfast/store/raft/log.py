"""The log of one member: entries in order, of which a prefix is committed.

Entries that are committed and applied may be dropped; of the last one that was dropped, index and
term are kept, since the next entry must fit to it.

Guarantees
    RL-1  Entry follows entry without a gap, and terms never decrease.
    RL-2  What is committed is neither changed nor taken back: an attempt is an InternalError.
    RL-3  Entries of another log are taken only behind an entry that both have; what contradicts
          them is removed, and what agrees with them is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import InternalError
from holdfast.store.raft.messages import LogEntry, LogSnapshot

__all__ = ["EntryLog"]


class EntryLog:
    """A log that begins behind the entry at `base_index`, of `base_term`; all before is applied."""

    def __init__(self, base_index: int, base_term: int) -> None:
        self.base_index = base_index
        self.base_term = base_term
        self.committed = base_index
        self._entries: list[LogEntry] = []

    @property
    def last_index(self) -> int:
        """The index of the last entry."""
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self._entries[-1].term if self._entries else self.base_term

    def term(self, index: int) -> int | None:
        """Return the term of an entry, or None if it was dropped or is not there."""
        place = index - self.base_index
        if place == 0:
            return self.base_term
        return self._entries[place - 1].term if 0 < place <= len(self._entries) else None

    def entry(self, index: int) -> LogEntry:
        """Return an entry that is there."""
        return self._entries[index - self.base_index - 1]

    def entries_from(self, index: int, bytes_max: int) -> tuple[LogEntry, ...] | None:
        """Return entries from `index` on: one at least, if there is one, and up to so many bytes.

        None if some of them were dropped.
        """
        start = index - self.base_index - 1
        if start < 0:
            return None
        end, size = start, 0
        for entry in self._entries[start:]:
            size += len(entry.data)
            if size > bytes_max and end > start:
                break
            end += 1
        return tuple(self._entries[start:end])

    def is_current(self, index: int, term: int) -> bool:
        """Say whether a log that ends with this entry has at least all that this one has."""
        return (term, index) >= (self.last_term, self.last_index)

    def append(self, entry: LogEntry) -> None:
        """Add an entry of this member's own."""
        if entry.index != self.last_index + 1 or entry.term < self.last_term:
            raise InternalError(f"RL-1: {entry} does not follow index {self.last_index}")
        self._entries.append(entry)

    def adopt(self, index: int, term: int, entries: Sequence[LogEntry]) -> int | None:
        """Take a leader's entries behind the one at `index` of `term`.

        Return the index of the last of them, or None if this log lacks the entry before (RL-3).
        """
        if self.term(index) != term:
            return None
        for place, entry in enumerate(entries):
            if self.term(entry.index) != entry.term:
                self._truncate(entry.index)
                for follower in entries[place:]:
                    self.append(follower)
                break
        return index + len(entries)

    def commit_to(self, index: int) -> bool:
        """Note that all up to `index` is committed; say whether that is more than before."""
        if index > self.last_index:
            raise InternalError(f"commit of {index}, but the log ends at {self.last_index}")
        if index <= self.committed:
            return False
        self.committed = index
        return True

    def drop_to(self, index: int) -> None:
        """Drop the entries up to `index`, which must be committed. Idempotent."""
        if index > self.committed:
            raise InternalError(f"drop of {index}, but only {self.committed} is committed")
        if index > self.base_index:
            term = self.entry(index).term
            del self._entries[: index - self.base_index]
            self.base_index, self.base_term = index, term

    def restore(self, snapshot: LogSnapshot) -> None:
        """Begin behind a snapshot of what is committed elsewhere, instead of all that was here."""
        if snapshot.index <= self.committed:
            raise InternalError(f"RL-2: {snapshot.index} instead of {self.committed}, committed")
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self.committed = snapshot.index
        self._entries.clear()

    def _truncate(self, index: int) -> None:
        """Remove the entries from `index` on (RL-2)."""
        if index <= self.committed:
            raise InternalError(f"RL-2: {index} contradicts what is committed, {self.committed}")
        del self._entries[index - self.base_index - 1 :]
