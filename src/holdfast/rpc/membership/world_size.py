"""How many workers a world has: the workers that wait for it must agree on that.

A worker sends a refusal to a worker that joins later with another size. The worker that joins
cannot detect the mismatch by itself: an older entry may belong to a worker that is gone and whose
lease has not ended. So it waits for that worker's refusal, or until the lease must have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from holdfast.rpc.client.contact import Contact

__all__ = ["WorldSize"]


class WorldSize:
    """The size of the world that one worker waits for, and the workers that wait for another one.

    `before` has the incarnations of the workers that joined before this one; the entries of those
    that are gone have vanished at `stale_until`.
    """

    def __init__(self, me: Contact, before: AbstractSet[str], stale_until: float) -> None:
        self.me = me
        self._before = before
        self._stale_until = stale_until
        self.in_doubt = False
        """Whether a worker of another size had joined before, and may be gone."""

    def differs(self, other: Contact) -> bool:
        """Return whether a worker waits for another number of workers."""
        return other.world_size not in (0, self.me.world_size)

    def comes(self, other: Contact) -> bool:
        """Record a worker that differs; return whether it joined later, and must be refused."""
        if other.incarnation not in self._before:
            return True
        self.in_doubt = True
        return False

    def other(self, contacts: Iterable[Contact], now: float) -> Contact | None:
        """Return one of these that waits for another number and cannot be gone; None if none."""
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
        """Return the error text about a worker that waits for another number."""
        return (
            f"world_size {self.me.world_size}: {other.info} has world_size {other.world_size}; "
            "all workers of a job need the same"
        )
