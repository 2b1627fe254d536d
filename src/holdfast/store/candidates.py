"""Which of several members a client tries next: the leader if it was named, else one after another.

A leader that was named is tried once: while the members do not know yet that it is dead, they name
it again and again.
"""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.net.address import Address, parse_address

__all__ = ["Candidates"]


class Candidates:
    """The addresses that were given, and those that members told. Not thread-safe."""

    def __init__(self, given: tuple[Address, ...]) -> None:
        self._given = given
        self._known = list(given)
        self._named: Address | None = None
        self._tried: Address | None = None
        self._place = 0

    @property
    def several(self) -> bool:
        """Say whether there is more than one to try."""
        return len(self._known) > 1

    def next(self) -> Address:
        """Return the address to try now."""
        named, self._named = self._named, None
        if named is not None and named != self._tried:
            self._tried = named
            return named
        self._tried = self._known[self._place % len(self._known)]
        self._place += 1
        return self._tried

    def learn(self, members: tuple[str, ...], leader: str) -> None:
        """Hear where the members are, and which one leads ("" if none is known)."""
        told = [address for address in map(_address, members) if address is not None]
        self._known = list(dict.fromkeys((*told, *self._given)))
        self._named = _address(leader)


def _address(text: str) -> Address | None:
    """Read an address; None for one that cannot be connected to."""
    try:
        address = parse_address(text)
    except UsageError:
        return None
    return address if address.port else None
