"""References as they travel: the numbers of values and forks, and the tickets that carry them.

`rref/protocol.py` defines what they mean.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from holdfast.rpc.wire.messages import Buffer

__all__ = ["CREATION_BYTES", "Number", "Ticket", "Worker", "decode_creation", "encode_creation"]

_CREATION = struct.Struct("<QQ")
CREATION_BYTES = _CREATION.size

Worker: TypeAlias = str
"""An incarnation of a worker."""


class Number(NamedTuple):
    """The number of a reference or of a fork, unique among all workers."""

    maker: Worker
    serial: int


class Ticket(NamedTuple):
    """What is sent when a reference is given to another worker."""

    reference: Number
    owner: Worker
    fork: Number
    parent: Worker
    """The worker that gave it, and waits until it is accepted; empty if the owner gave it."""


def encode_creation(ticket: Ticket) -> bytes:
    """Return the head of a request that creates a value: its numbers, made by the caller.

    The callee reads them before the rest: another worker may already wait for the value, even if
    the callee cannot read the rest.
    """
    return _CREATION.pack(ticket.reference.serial, ticket.fork.serial)


def decode_creation(body: Buffer) -> tuple[int, int]:
    """Return the serial numbers of the reference and of the fork of its creator."""
    reference, fork = _CREATION.unpack_from(body)
    return reference, fork
