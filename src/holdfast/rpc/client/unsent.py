"""What is to be sent of a call that is given up: nothing, or what it was when it was given up.

The buffers of a request are the memory of its arguments. A caller that gave up may change them,
so that what has not been sent by then would be torn, or new. A message of which nothing has been
sent is taken back. Of one that has begun the rest must follow: a copy of it does.
"""

from __future__ import annotations

from holdfast.rpc.wire.messages import Buffer

__all__ = ["exposed", "take_back", "take_back_views"]


def exposed(parts: list[Buffer]) -> list[Buffer]:
    """Return the parts of a message so that they are found again, whatever they are sent with."""
    parts[0] = memoryview(parts[0])  # which `views_of` joins with nothing
    return parts


def take_back(parts: list[Buffer], out: list[Buffer]) -> bool:
    """Take a message out of what nobody has begun to send; say whether it was there."""
    for place, part in enumerate(out):
        if part is parts[0]:
            del out[place : place + len(parts)]
            return True
    return False


def take_back_views(parts: list[Buffer], views: list[memoryview]) -> None:
    """Take a message out of what is being sent, or copy the rest of it if it has begun."""
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
