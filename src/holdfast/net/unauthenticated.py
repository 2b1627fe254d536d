"""Connections that have not proved anything yet: how many are held, and which one is evicted.

Any host that can reach a port can open connections and stay silent, so they are bounded. When there
are too many, one is closed. If that were simply the oldest, a flood from one place would evict all
others. So the oldest connection of the place that holds the most is closed: a flood evicts itself.

Guarantees
    ST-1  At most `most` unauthenticated connections are held.
    ST-2  A connection is evicted only if no place holds more than its own: a flood from one
          address keeps out no connection from another one.
    ST-3  Among the connections of one place, the oldest is evicted.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["UnauthenticatedConnections", "place_of"]

_IPV6_SITE_BITS = 64  # one host has all the addresses of its network to choose from

T = TypeVar("T")


def place_of(host: str) -> str:
    """Return where an address is: itself, or for IPv6 the network that it is in."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # no address: a Unix socket has none
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    return str(ipaddress.ip_network((int(address), _IPV6_SITE_BITS), strict=False))


class UnauthenticatedConnections(Generic[T]):
    """The unauthenticated connections of one server, the oldest first. Not safe between threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._places: dict[T, str] = {}
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._places))

    def admit(self, connection: T, host: str) -> T | None:
        """Hold one more; return the one that is evicted for it, which is held no longer."""
        place = self._places[connection] = place_of(host)
        self._held[place] += 1
        if len(self._places) <= self.most:
            return None
        largest = max(self._held.values())
        gone = next(each for each, at in self._places.items() if self._held[at] == largest)
        self.forget(gone)
        return gone

    def forget(self, connection: T) -> None:
        """Hold it no longer: it has proved itself, or is gone. Idempotent."""
        place = self._places.pop(connection, None)
        if place is not None:
            self._held[place] -= 1
            if not self._held[place]:
                del self._held[place]
