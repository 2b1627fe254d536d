"""Reads that wait until the leader is sure that it still leads.

A leader that was deposed does not know it. So a read is numbered, and the number travels with the
next heartbeats. Once a majority has echoed it, no other member can have led before the read came,
and what was committed then is all that the read must see.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.store.raft.progress import quorum_value

__all__ = ["PendingReads", "WaitingRead"]


class WaitingRead(NamedTuple):
    """A read of `requester`, which may be answered once `read_index` is applied."""

    number: int
    read_index: int
    requester: int
    context: bytes


class PendingReads:
    """The reads of one leader in one term."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: list[WaitingRead] = []
        self._echoed: dict[int, int] = {}

    def begin(self, index: int, requester: int, context: bytes) -> None:
        """Take a read that must see all up to `index`."""
        self._number += 1
        self._waiting.append(WaitingRead(self._number, index, requester, context))

    def heartbeat_context(self) -> bytes:
        """Return what the next heartbeat carries: the number of the newest read, if one waits."""
        return b"%d" % self._number if self._waiting else b""

    def echo(self, member: int, context: bytes) -> None:
        """Hear from a member what a heartbeat carried to it."""
        if context.isdigit():
            self._echoed[member] = max(self._echoed.get(member, 0), int(context))

    def confirmed(self, leader: int, voters: tuple[int, ...], quorum: int) -> list[WaitingRead]:
        """Return the reads that a majority has echoed, oldest first, and forget them."""
        if not self._waiting:
            return []
        echoed = (self._number if v == leader else self._echoed.get(v, 0) for v in voters)
        below = quorum_value(echoed, quorum)
        sure = [read for read in self._waiting if read.number <= below]
        del self._waiting[: len(sure)]
        return sure
