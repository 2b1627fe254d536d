"""Messages as parts that are sent together: few system calls, and no needless copies."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.rpc.wire.codec import HEADER_BYTES, encode_head
from holdfast.rpc.wire.messages import Buffer, Message
from holdfast.rpc.wire.peer_memory import BIG_BYTES, PeerMemory

__all__ = ["JOIN_BYTES", "parts_of", "take_off", "views_of"]

JOIN_BYTES = 4 * 1024
"""Copying up to this size costs less than sending a vector of two parts."""


def parts_of(message: Message, parts: list[Buffer], reach: PeerMemory | None = None) -> None:
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
