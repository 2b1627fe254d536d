"""ACKNOWLEDGE notes: the calls below a number are over at the caller, but for some still open.

The callee may forget the replies to calls that are over (`server/dedup.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from holdfast.rpc.wire.messages import Kind, Message

__all__ = ["OPEN_CALLS_MAX", "decode_acknowledgement", "encode_acknowledgement"]

OPEN_CALLS_MAX = 64
"""How many open calls one note names at most."""
_NUMBER = struct.Struct(">Q")


def encode_acknowledgement(ack_floor: int, open_calls: Iterable[int] = ()) -> Message:
    """Return the note that the calls below `ack_floor` are over, but for those still open."""
    body = b"".join(_NUMBER.pack(call) for call in open_calls if call < ack_floor)
    return Message(Kind.ACKNOWLEDGE, ack_floor, body)


def decode_acknowledgement(note: Message) -> Iterable[int]:
    """Return the calls that a note names as still open; a torn number at its end is ignored."""
    body = bytes(note.body)
    return (number for (number,) in _NUMBER.iter_unpack(body[: len(body) // 8 * 8]))
