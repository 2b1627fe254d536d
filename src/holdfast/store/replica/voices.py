"""Which members have died, by proof: the other end closed the connection on which a member speaks.

A member speaks on one connection at a time. A process that ends has its connections closed by its
system; one that lives closes a connection only after it has said that it parts (`PARTING`). So an
end of the connection without that word is the death of the member, unless the member speaks on
another connection soon: a device on the path may have reset the first one.

Guarantees
    MV-1  A member that parts is never dead by that, nor one that speaks on a newer connection.
    MV-2  A member counts as dead DEAD_AFTER_S after its end, until it speaks again.
"""

from __future__ import annotations

from itertools import count

__all__ = ["DEAD_AFTER_S", "MemberVoices"]

DEAD_AFTER_S = 0.5


class MemberVoices:
    """What one member knows of the connections on which the others speak."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._current: dict[int, int] = {}
        self._ended: dict[int, float] = {}

    def begin(self, member: int) -> int:
        """Hear that a member speaks on a new connection; return the connection's number."""
        self._ended.pop(member, None)
        self._current[member] = next(self._numbers)
        return self._current[member]

    def end(self, member: int, number: int, now: float, *, died: bool) -> None:
        """Hear that a connection is over, `died` if the other end closed it and did not part."""
        if self._current.get(member) != number:
            return  # MV-1
        del self._current[member]
        if died:
            self._ended[member] = now

    def forget(self, member: int) -> None:
        """Forget one that is no member any more."""
        self._current.pop(member, None)
        self._ended.pop(member, None)

    def dead(self, now: float) -> list[int]:
        """Return the members that have died."""
        return [one for one, at in self._ended.items() if now - at >= DEAD_AFTER_S]
