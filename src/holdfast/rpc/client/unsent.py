"""Removes the unsent part of a call that is given up, or replaces it by a copy.

The buffers of a request are the memory of its arguments. A caller that gave up may change them, and
the unsent part would contain the changes. A message is removed if no byte of it has been sent. If
sending has begun the rest must follow: a copy of it is sent.
"""

from __future__ import annotations

from holdfast.rpc.wire.messages import Buffer

__all__ = ["exposed", "take_back", "take_back_views"]


def exposed(parts: list[Buffer]) -> list[Buffer]:
    """Return the parts of a message in a form that can be found again in a batch."""
    parts[0] = memoryview(parts[0])  # `views_of` does not join a memoryview with other parts
    return parts


def take_back(parts: list[Buffer], out: list[Buffer]) -> bool:
    """Remove a message that no thread has begun to send; return whether it was there."""
    for place, part in enumerate(out):
        if part is parts[0]:
            del out[place : place + len(parts)]
            return True
    return False


def take_back_views(parts: list[Buffer], views: list[memoryview]) -> None:
    """Remove a message from what is being sent, or copy the rest of it if sending has begun."""
    head, *rest = [memoryview(part) for part in parts]
    for place, view in enumerate(views):
        if view.obj is head.obj and view.nbytes == head.nbytes:
            end, size = place, head.nbytes + sum(part.nbytes for part in rest)
            while size > 0:
                size -= views[end].nbytes
                end += 1
            del views[place:end]
            return
    for place, view in enumerate(views):
        if any(view.obj is part.obj for part in rest):
            views[place] = memoryview(bytes(view))
