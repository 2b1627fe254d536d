"""Where the members of a replicated store are, and whose process each of them is in.

A member may be hosted by a process that is a client of the store as well: its owner is the session
of that client. If the process dies, both do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["MemberPlaces"]


class MemberPlaces:
    """The address of each member and of those that asked to be one, and their owners."""

    def __init__(
        self, addresses: Mapping[int, str] | None = None, owners: Mapping[int, int] | None = None
    ) -> None:
        self.addresses = dict(addresses or {})
        self.owners = dict(owners or {})
        """The session of the client in the same process; a member without one is not listed."""

    def put(self, member: int, address: str, owner: int) -> None:
        """Note where a member is; the owner is 0 if it has none."""
        self.addresses[member] = address
        if owner:
            self.owners[member] = owner

    def remove(self, member: int) -> None:
        """Forget one that is no member any more."""
        self.addresses.pop(member, None)
        self.owners.pop(member, None)

    def of(self, member: int | None) -> str:
        """Return where a member is; "" if that is not known."""
        return "" if member is None else self.addresses.get(member, "")

    def among(self, members: Iterable[int]) -> dict[int, str]:
        """Return where these members are, as far as is known."""
        return {member: self.addresses[member] for member in members if member in self.addresses}
