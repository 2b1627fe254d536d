"""The roll of a round, by pages: written by a leader before the record that names it, read later.

Pure. The rules (RM-1 to RM-4) are those of `model.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.errors import PeerViolation
from holdfast.rendezvous.decide import Decision
from holdfast.rendezvous.model import PAGE_MEMBERS, Keys, Member, MemberRank, Page, RoundRecord
from holdfast.store.ops import Entry, MultiSet

__all__ = ["Draft", "read_roll"]


class Draft:
    """A round that a leader has decided, and how much of its roll is written."""

    def __init__(self, roll: str, decision: Decision, record: RoundRecord, keys: Keys) -> None:
        record = replace(record, roll=roll)
        self.decision = replace(decision, record=record)
        """The decision, whose record names the roll."""
        self.record = record
        self.members = decision.members
        self._keys = keys
        self._names = {member.node for member in self.members}
        self._written = 0

    def names(self, node: str) -> bool:
        """Say whether a node is among the members."""
        return node in self._names

    def next_op(self) -> MultiSet | None:
        """Return what writes the next page and its places; None if all are written."""
        first = self._written
        members = self.members[first : first + PAGE_MEMBERS]
        if not members:
            return None
        roll, keys = self.record.roll, self._keys
        page = (keys.page(roll, first // PAGE_MEMBERS), Page(members).encode())
        places = (
            (keys.place(roll, member.node), MemberRank(rank).encode())
            for rank, member in enumerate(members, first)
        )
        return MultiSet((page, *places))

    def wrote(self, op: MultiSet) -> None:
        """Hear that a page is written, be it the one of another draft that came late."""
        if op == self.next_op():
            self._written += PAGE_MEMBERS


def read_roll(pages: Sequence[Entry], keys: Keys, record: RoundRecord) -> tuple[Member, ...]:
    """Return the members that a record refers to, from its pages in the order of their keys.

    PeerViolation if they are not all there, or not what a leader would have written.
    """
    members: list[Member] = []
    for number, entry in enumerate(pages):
        if entry.key != keys.page(record.roll, number):
            raise PeerViolation(f"roll {record.roll!r:.80}: page {number} is missing")
        members += Page.decode(entry.value).members
    found = len({member.node for member in members})
    if not found == len(members) == record.size:
        raise PeerViolation(
            f"roll {record.roll!r:.80}: {found} members were read, {record.size} were expected"
        )
    return tuple(members)
