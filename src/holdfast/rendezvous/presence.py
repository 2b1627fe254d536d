"""The announcement of one node: what the store holds of it, and what must be written.

Pure, as `machine.py` of which it is a part.

Theory. A write that found no answer may still be performed, later than writes that were sent after
it. So each write names the value that it replaces. The store refuses it once another value is
there, and its answer says which: a write that was performed unheard is recognised by its bytes.
No announcement of a node comes twice under one lease, since wishes and rounds increase. Absence
may: a node that takes its wish back is absent again. So a node whose first announcement may still
be performed then gives its lease back, and the store refuses what belongs to that.

Guarantees
    PR-1  A write that is performed late never replaces a newer announcement.
    PR-2  A write that is performed late never announces a node that has withdrawn.
"""

from __future__ import annotations

from holdfast.ids import LeaseId
from holdfast.rendezvous.model import Announcement, Phase
from holdfast.store.ops import CompareSet, LeaseRevoke, Swap

__all__ = ["Presence"]


class Presence:
    """What a node knows of its own key."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._stored: bytes | None = None
        self._may_come = False  # by a write that was not answered
        self.came = 0
        """The store's revision at which the node was announced first; 0 if it was not."""

    def next_op(
        self, wanted: Announcement | None, lease: LeaseId
    ) -> CompareSet | LeaseRevoke | None:
        """Return what makes the store hold the announcement that is wanted; None for none.

        LeaseRevoke means that the node must begin anew, with another lease (PR-2).
        """
        if wanted is None and self._may_come:
            return LeaseRevoke(lease)
        value = None if wanted is None else wanted.encode()
        if value == self._stored:
            return None
        leased = wanted is not None and wanted.phase is not Phase.LEFT
        return CompareSet(self.key, self._stored, value, lease if leased else None)

    def answered(self, op: CompareSet, swap: Swap) -> None:
        """Hear what the store holds, by its answer to `next_op`."""
        self._stored = swap.value
        if swap.value is not None and swap.value == op.desired:
            self.came = self.came or swap.revision

    def unanswered(self, op: CompareSet) -> None:
        """Hear that `next_op` was not answered: it may be performed later."""
        self._may_come = self._may_come or op.expected is None

    def lost(self) -> None:
        """Hear that the lease is gone, and with it all that it held."""
        self._stored, self._may_come = None, False
