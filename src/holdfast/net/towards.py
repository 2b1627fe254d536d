"""The address of this machine, as somebody else sees it."""

from __future__ import annotations

import socket

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError
from holdfast.net.address import Address

__all__ = ["address_towards"]


def address_towards(target: Address | None, deadline: Deadline) -> str:
    """Return the address of this machine that a target sees: the one packets to it come from.

    Without a target, or if it cannot be told, the loopback address.
    """
    if target is None:
        return "127.0.0.1"
    from holdfast.net.tcp import resolve

    try:
        family, where = resolve(target, deadline)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except (HoldfastError, OSError):
        return "127.0.0.1"
