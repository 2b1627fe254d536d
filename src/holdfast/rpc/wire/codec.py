"""Messages as bytes: a fixed header, the lengths of the buffers, the body, the buffers.

    kind 1  flags 1  buffers 2  budget 4  call 8  body length 8      24 bytes, little-endian
    length of each buffer, 8 bytes each
    body
    buffers, one after the other; if a length has the bit ELSEWHERE, the buffer's place instead

Lengths are checked before memory is allocated for them. Only peers that have proved that they
hold the job's secret get this far.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

from holdfast.errors import PeerViolation, UsageError
from holdfast.rpc.wire.messages import Kind, Message

__all__ = [
    "BUFFERS_MAX",
    "ELSEWHERE",
    "HEADER_BYTES",
    "MESSAGE_BYTES_MAX",
    "Head",
    "decode_head",
    "decode_lengths",
    "decode_small",
    "encode_head",
]

HEADER = struct.Struct("<BBHIQQ")
HEADER_BYTES = HEADER.size
BUFFERS_MAX = 1 << 15
MESSAGE_BYTES_MAX = 1 << 40
ELSEWHERE = 1 << 63
"""Set in the length of a buffer whose place is sent instead of its bytes."""
BUDGET_MAX_MS = (1 << 32) - 1
"""Seven weeks; a longer budget is reduced to this."""

_ONCE = True  # the only flag
_KINDS = {kind.value: kind for kind in Kind}
_SMALL = {kind.value: kind for kind in Kind if kind < Kind.OFFER}
_pack, _unpack = HEADER.pack, HEADER.unpack_from


class Head(NamedTuple):
    """The fields of a header."""

    kind: Kind
    once: bool
    buffers: int
    budget_ms: int
    call: int
    body_bytes: int


def encode_head(message: Message, elsewhere_from: int = 0) -> bytes:
    """Return the header and the buffers' lengths, which precede the body.

    For buffers of `elsewhere_from` bytes and more, only the places are sent; 0 for none.
    """
    buffers, size, budget_ms = message.buffers, len(message.body), message.budget_ms
    if budget_ms > BUDGET_MAX_MS:  # noqa: PLR1730  # min is slower, and this is in every call
        budget_ms = BUDGET_MAX_MS
    if not buffers:
        return _pack(message.kind, message.once, 0, budget_ms, message.call, size)
    if len(buffers) > BUFFERS_MAX:
        raise UsageError(f"{len(buffers)} buffers in one message: at most {BUFFERS_MAX}")
    head = _pack(message.kind, message.once, len(buffers), budget_ms, message.call, size)
    lengths = [memoryview(buffer).nbytes for buffer in buffers]
    if size + sum(lengths) > MESSAGE_BYTES_MAX:
        raise UsageError(f"message of {size + sum(lengths)} bytes: at most {MESSAGE_BYTES_MAX}")
    if elsewhere_from:
        lengths = [size | ELSEWHERE if size >= elsewhere_from else size for size in lengths]
    return head + struct.pack(f"<{len(lengths)}Q", *lengths)


def decode_head(data: bytes | bytearray | memoryview, start: int = 0) -> Head:
    """Read a header; PeerViolation if it is invalid."""
    number, flags, buffers, budget_ms, call, size = _unpack(data, start)
    kind = _KINDS.get(number)
    if kind is None or flags > _ONCE or buffers > BUFFERS_MAX or size > MESSAGE_BYTES_MAX:
        raise PeerViolation(
            f"header of a message: kind {number}, flags {flags}, {buffers} buffers, "
            f"{size} bytes is out of bounds"
        )
    return Head(kind, flags == _ONCE, buffers, budget_ms, call, size)


def decode_small(data: bytearray, start: int, end: int, come: deque[Message]) -> int:
    """Add the messages from `start` on to `come`, up to the first one that is large or incomplete.

    Return where that one begins. A message is small if it has no buffers and is not a note between
    connections. Nearly all are small, and many arrive at a time, so this is their fast path.
    """
    while True:
        body = start + HEADER_BYTES
        if body > end:
            return start
        number, flags, buffers, budget_ms, call, size = _unpack(data, start)
        after = body + size
        if buffers or after > end or flags > _ONCE or number not in _SMALL:
            return start
        come.append(Message(_SMALL[number], call, data[body:after], (), budget_ms, flags == _ONCE))
        start = after


def decode_lengths(data: bytes | bytearray | memoryview, head: Head) -> tuple[int, ...]:
    """Read the lengths of the buffers, with ELSEWHERE set for those that are not sent."""
    lengths: tuple[int, ...] = struct.unpack_from(f"<{head.buffers}Q", data)
    total = head.body_bytes + sum(length & ~ELSEWHERE for length in lengths)
    if total > MESSAGE_BYTES_MAX:
        raise PeerViolation(f"message of more than {MESSAGE_BYTES_MAX} bytes was announced")
    return lengths
