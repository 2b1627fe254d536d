"""Messages as bytes: a fixed header, the lengths of the buffers, the body, the buffers.

    kind 1  flags 1  buffers 2  budget 4  call 8  body length 8      24 bytes, little-endian
    length of each buffer, 8 bytes each; the highest bits say what it is
    body
    buffers, one after the other; if a length has the bit ELSEWHERE, the buffer's place instead

Lengths are checked before memory is allocated for them. Only peers that have proved that they
hold the job's secret get this far.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.errors import PeerViolation, UsageError
from holdfast.rpc.wire.messages import Buffer, Kind, Message

__all__ = [
    "AS_BYTEARRAY",
    "AS_BYTES",
    "BIG_BYTES",
    "BUFFERS_MAX",
    "ELSEWHERE",
    "HEADER_BYTES",
    "JOIN_BYTES",
    "MESSAGE_BYTES_MAX",
    "SIZE",
    "Head",
    "LargeBuffers",
    "decode_head",
    "decode_lengths",
    "decode_small",
    "encode_head",
    "encode_small",
    "parts_of",
    "take_off",
    "views_of",
]

HEADER = struct.Struct("<BBHIQQ")
HEADER_BYTES = HEADER.size
JOIN_BYTES = 4 * 1024
"""Copying up to this size costs less than sending a vector of two parts."""
BUFFERS_MAX = 1 << 15
BIG_BYTES = 1 << 18
"""A buffer of at least this size is read from the memory of its process, if that is possible.

Smaller buffers cost less within the stream: to read another process's memory costs more for each
page, and the sender needs one more message before it releases it. Larger ones would fill the
socket more than once, and each time both processes would wait for each other."""
MESSAGE_BYTES_MAX = 1 << 40
ELSEWHERE = 1 << 63
"""Set in the length of a buffer whose place is sent instead of its bytes."""
AS_BYTES, AS_BYTEARRAY = 1 << 62, 1 << 61
"""Set in the length of a buffer that arrives as an object of this kind; others arrive as memory."""
SIZE = AS_BYTEARRAY - 1
"""The bits of a length that are its size."""
BUDGET_MAX_MS = (1 << 32) - 1
"""Seven weeks; a longer budget is reduced to this."""

_ONCE, _REFERENCES = 1, 2
_FLAGS = _ONCE | _REFERENCES
_KINDS = {kind.value: kind for kind in Kind}
_SMALL = {kind.value: kind for kind in Kind if kind < Kind.OFFER}
_BOTH = AS_BYTES | AS_BYTEARRAY
_AS: dict[type, int] = {bytes: AS_BYTES, bytearray: AS_BYTEARRAY}
_pack, _unpack = HEADER.pack, HEADER.unpack_from


class Head(NamedTuple):
    """The fields of a header."""

    kind: Kind
    once: bool
    buffers: int
    budget_ms: int
    call: int
    body_bytes: int
    has_references: bool = False


def encode_small(message: Message) -> bytes | None:
    """Return a whole message that is small and has no buffers, as nearly all are; else None."""
    body = message.body
    if message.buffers or len(body) > JOIN_BYTES:
        return None
    return encode_head(message) + body


def encode_head(message: Message, elsewhere_from: int = 0) -> bytes:
    """Return the header and the buffers' lengths, which precede the body.

    For buffers of `elsewhere_from` bytes and more, only the places are sent; 0 for none.
    """
    buffers, size, budget_ms = message.buffers, len(message.body), message.budget_ms
    if budget_ms > BUDGET_MAX_MS:  # noqa: PLR1730  # min is slower, and this is in every call
        budget_ms = BUDGET_MAX_MS
    flags = message.once | _REFERENCES if message.given else message.once
    if not buffers:
        return _pack(message.kind, flags, 0, budget_ms, message.call, size)
    if len(buffers) > BUFFERS_MAX:
        raise UsageError(f"{len(buffers)} buffers in one message: at most {BUFFERS_MAX}")
    head = _pack(message.kind, flags, len(buffers), budget_ms, message.call, size)
    total, lengths = size, []
    for buffer in buffers:
        length = len(buffer) if type(buffer) in _AS else memoryview(buffer).nbytes
        total += length
        elsewhere = ELSEWHERE if 0 < elsewhere_from <= length else 0
        lengths.append(length | _AS.get(type(buffer), 0) | elsewhere)
    if total > MESSAGE_BYTES_MAX:
        raise UsageError(f"message of {total} bytes: at most {MESSAGE_BYTES_MAX}")
    return head + struct.pack(f"<{len(lengths)}Q", *lengths)


def decode_head(data: bytes | bytearray | memoryview, start: int = 0) -> Head:
    """Read a header; PeerViolation if it is invalid."""
    number, flags, buffers, budget_ms, call, size = _unpack(data, start)
    kind = _KINDS.get(number)
    if kind is None or flags > _FLAGS or buffers > BUFFERS_MAX or size > MESSAGE_BYTES_MAX:
        raise PeerViolation(
            f"header of a message: kind {number}, flags {flags}, {buffers} buffers, "
            f"{size} bytes is out of bounds"
        )
    once, has_references = bool(flags & _ONCE), bool(flags & _REFERENCES)
    return Head(kind, once, buffers, budget_ms, call, size, has_references)


def decode_small(data: bytearray, start: int, end: int, come: deque[Message]) -> int:
    """Add the messages from `start` on to `come`, up to the first one that is large or incomplete.

    Return where that one begins. A message is small if it has no buffers and no references, and is
    not a note between connections. Nearly all are small, and many arrive at a time, so this is
    their fast path.
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
    """Read the lengths of the buffers, with the bits that say what each of them is."""
    lengths: tuple[int, ...] = struct.unpack_from(f"<{head.buffers}Q", data)
    total = head.body_bytes + sum(length & SIZE for length in lengths)
    if total > MESSAGE_BYTES_MAX:
        raise PeerViolation(f"message of more than {MESSAGE_BYTES_MAX} bytes was announced")
    if any(length & _BOTH == _BOTH for length in lengths):
        raise PeerViolation("a buffer is announced as bytes and as a bytearray")
    return lengths


# Messages as parts that are sent together: few system calls, and no needless copies.


class LargeBuffers(Protocol):
    """Holds large buffers where the peer can read them."""

    def places_of(self, message: Message) -> list[Buffer]:
        """Return a message's buffers, with places instead of the large ones, and hold those."""
        ...


def parts_of(message: Message, parts: list[Buffer], reach: LargeBuffers | None = None) -> None:
    """Add a message to the parts to be sent.

    With `reach`, which holds large buffers for the peer, only the places of those are sent.
    """
    head, body = encode_head(message, BIG_BYTES if reach else 0), message.body
    if len(body) <= JOIN_BYTES:
        parts.append(head + body)
    else:
        parts.append(head)
        parts.append(body)
    if message.buffers:
        parts += message.buffers if reach is None else reach.places_of(message)


def views_of(parts: Sequence[Buffer]) -> list[memoryview]:
    """Return views of the parts to be sent; adjacent small parts are joined."""
    views: list[memoryview] = []
    small: list[bytes] = []
    for part in parts:
        if type(part) is bytes and len(part) <= JOIN_BYTES + HEADER_BYTES:
            small.append(part)
            continue
        if small:
            views.append(memoryview(b"".join(small)))
            small = []
        view = memoryview(part).cast("B")
        if view.nbytes:
            views.append(view)
    if small:
        views.append(memoryview(b"".join(small)))
    return views


def take_off(views: list[memoryview], sent: int) -> None:
    """Remove the bytes that have been sent."""
    done = 0
    while done < len(views) and sent >= views[done].nbytes:
        sent -= views[done].nbytes
        done += 1
    del views[:done]
    if sent:
        views[0] = views[0][sent:]
