"""The address of this machine, as its peers see it."""

from __future__ import annotations

import contextlib
import socket

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError
from holdfast.net.address import Address

__all__ = ["address_towards", "addresses_towards"]


def address_towards(target: Address | None, deadline: Deadline) -> str:
    """Return the address of this machine that a target sees: the one packets to it come from.

    Without a target, or if it cannot be told, the loopback address.
    """
    found = [] if target is None else addresses_towards(target, deadline)
    return found[0] if found else "127.0.0.1"


def addresses_towards(target: Address, deadline: Deadline) -> list[str]:
    """Return the addresses from which this machine reaches those of a target, in their order."""
    from holdfast.net.tcp import resolve

    found = []
    with contextlib.suppress(HoldfastError):
        for family, where in resolve(target, deadline):
            with (
                contextlib.suppress(OSError),  # there is no way to this one
                socket.socket(family, socket.SOCK_DGRAM) as probe,
            ):
                probe.connect(where)  # a datagram socket: nothing is sent
                found.append(str(probe.getsockname()[0]))
    return found
