"""What a node knows of its place in the rounds of its run.

Pure, as `machine.py` of which it is a part.

Theory. A roll that a record names never changes (RM-3). So a place that was read once after the
record was seen is known for ever, also while the next round is being formed: the record of that
names the same roll (RM-4).
"""

from __future__ import annotations

from holdfast.ids import NodeId
from holdfast.rendezvous.model import Keys, MemberRank, RoundRecord, Status
from holdfast.store.ops import Entry, Get

__all__ = ["OwnRank"]


class OwnRank:
    """The newest roll in which a node has looked for itself, and what it found."""

    def __init__(self, keys: Keys, node: NodeId) -> None:
        self._keys = keys
        self._node = node
        self._roll = ""  # of no round, in which no node has a place
        self._rank: int | None = None

    def rank(self, record: RoundRecord | None) -> int | None:
        """Return the rank in the record's roll; None if there is none, or it is not known yet."""
        return self._rank if record is not None and record.roll == self._roll else None

    def next_op(self, record: RoundRecord | None, newest: int) -> Get | None:
        """Return what reads the place of a node that waits and was in round `newest` last.

        None if it is known, or the record is of no later round.
        """
        if record is None or record.roll == self._roll:
            return None
        last = record.number - (record.status is Status.FORMING)
        if record.status is Status.CLOSED or last <= newest:
            return None
        return Get(self._keys.place(record.roll, self._node))

    def answered(self, key: str, found: Entry | None, record: RoundRecord | None) -> bool:
        """Hear what was read; say whether it is about the roll of this record.

        PeerViolation if it is not a place.
        """
        if record is None or key != self._keys.place(record.roll, self._node):
            return False
        self._rank = None if found is None else MemberRank.decode(found.value).rank
        self._roll = record.roll
        return True
