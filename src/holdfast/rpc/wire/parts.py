"""Messages as parts that are sent together: few system calls, and no needless copies."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.rpc.wire.codec import HEADER_BYTES, encode_head
from holdfast.rpc.wire.messages import Buffer, Message
from holdfast.rpc.wire.peer_memory import BIG_BYTES, PeerMemory

__all__ = ["JOIN_BYTES", "parts_of", "take_off", "views_of"]

JOIN_BYTES = 4 * 1024
"""Copying so little costs less than a vector of two."""


def parts_of(message: Message, parts: list[Buffer], reach: PeerMemory | None = None) -> None:
    """Add a message to what is to be sent.

    Of large buffers the places are sent only, if there is a reach to hold them.
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
    """Return the bytes of what is to be sent, small parts that follow each other as one."""
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
    """Take off what has been sent."""
    done = 0
    while done < len(views) and sent >= views[done].nbytes:
        sent -= views[done].nbytes
        done += 1
    del views[:done]
    if sent:
        views[0] = views[0][sent:]
