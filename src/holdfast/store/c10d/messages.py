"""The requests of torch's TCPStore protocol, as data.

One closed union, `Request`. `wire.py` reads and writes them, `space.py` says what they
mean. Keys are raw bytes: torch's client puts "/" before every key of its user. A request with
"No reply" is fire and forget: an error shows only as a closed connection, later.
"""

from __future__ import annotations

from typing import TypeAlias

from holdfast.records import dataclass

__all__ = [
    "Add",
    "Append",
    "Barrier",
    "CancelWait",
    "Check",
    "CompareSet",
    "Delete",
    "Get",
    "ListKeys",
    "MultiGet",
    "MultiSet",
    "NumKeys",
    "Ping",
    "QueueLen",
    "QueuePop",
    "QueuePush",
    "Request",
    "Set",
    "Validate",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Validate:
    """The first request of a connection, sent once: this is torch's protocol."""


@dataclass(frozen=True, slots=True)
class Set:
    """Write a key. No reply."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class CompareSet:
    """Replace a value if it is `expected`; empty also matches absence. Reply: what is stored."""

    key: bytes
    expected: bytes
    desired: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key, without waiting. Reply: its value."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Add:
    """Add to a decimal counter. Reply: the sum."""

    key: bytes
    amount: int


@dataclass(frozen=True, slots=True)
class Check:
    """Ask whether all keys are there. Reply: one byte, 0 for yes."""

    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until each of the keys has been there. Reply: READY, perhaps later."""

    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class NumKeys:
    """Count all keys. Reply: the number."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key. Reply: how many were removed, 0 or 1."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Append:
    """Append to a value. No reply."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class MultiGet:
    """Read several keys. Reply: the values in order, without a count."""

    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class MultiSet:
    """Write several keys. No reply."""

    items: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class CancelWait:
    """End the wait of this connection, if there is one. Reply: CANCELLED, always."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask for a sign of life. Reply: the same number."""

    nonce: int


@dataclass(frozen=True, slots=True)
class QueuePush:
    """Put a value at the end of a queue. No reply."""

    queue: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class QueuePop:
    """Take the first value of a queue. Reply: the length before, then the value if there is one."""

    queue: bytes


@dataclass(frozen=True, slots=True)
class QueueLen:
    """Ask for the length of a queue. Reply: the number."""

    queue: bytes


@dataclass(frozen=True, slots=True)
class ListKeys:
    """List all keys. Reply: their number, then each."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Arrive at a barrier of `world_size`. Reply: READY, once that many have arrived."""

    key: bytes
    world_size: int


Request: TypeAlias = (
    Validate
    | Set
    | CompareSet
    | Get
    | Add
    | Check
    | Wait
    | NumKeys
    | Delete
    | Append
    | MultiGet
    | MultiSet
    | CancelWait
    | Ping
    | QueuePush
    | QueuePop
    | QueueLen
    | ListKeys
    | Barrier
)
