"""How many workers a world has: the workers that wait for it must agree on that.

A worker that is there when another one comes tells it of another size. A worker that comes cannot
be sure by itself: an entry that was there before may be of a worker that is gone, and not forgotten
yet. So it waits for a word of that worker, or until the entry must have been forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from holdfast.rpc.client.contact import Contact

__all__ = ["WorldSize"]


class WorldSize:
    """The size of the world that one worker waits for, and those who wait for another one.

    `before` has the lives of the workers that were there before this one; those that are gone are
    forgotten at `stale_until`.
    """

    def __init__(self, me: Contact, before: AbstractSet[str], stale_until: float) -> None:
        self.me = me
        self._before = before
        self._stale_until = stale_until
        self.in_doubt = False
        """Whether a worker of another size was there before, which may be gone."""

    def differs(self, other: Contact) -> bool:
        """Say whether a worker waits for another number of workers."""
        return other.world_size not in (0, self.me.world_size)

    def comes(self, other: Contact) -> bool:
        """Hear of a worker that differs; say whether it came later, and is to be told so."""
        if other.incarnation not in self._before:
            return True
        self.in_doubt = True
        return False

    def other(self, contacts: Iterable[Contact], now: float) -> Contact | None:
        """Return one of these that waits for another number, and is not gone; None if none does."""
        for each in contacts:
            is_stale = each.incarnation in self._before and now < self._stale_until
            if self.differs(each) and not is_stale:
                return each
        return None

    def others(self, contacts: Iterable[Contact]) -> str:
        """Return in words which of these wait for another number; empty if none does."""
        return "".join(
            f"; {one.info.name} has world_size {one.world_size}"
            for one in contacts
            if self.differs(one)
        )

    def mismatch(self, other: Contact) -> str:
        """Return what to say of a worker that waits for another number."""
        return (
            f"world_size {self.me.world_size}: {other.info} has world_size {other.world_size}; "
            "all workers of a job need the same"
        )
