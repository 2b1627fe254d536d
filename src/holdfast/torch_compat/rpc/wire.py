"""What torch's pickler makes of a value, on its way: bytes, tensors, and references.

torch pickles a value before its receiver is known. Tensors and references are left out of the
bytes: each is put into a table of the thread that pickles, and its place in the table is pickled in
its stead. The three travel together, as a *payload*, and core pickles the tables: tensors where
they lie (`pickling.py`), references as tickets for the worker that gets them.

Guarantees
    WI-1  A reference in a payload is found by a number that is never used twice by its thread: what
          an earlier value that could not be pickled has left behind takes no other's place.
"""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any, TypeAlias

from holdfast.torch_compat.autograd.contexts import CONTEXTS
from holdfast.torch_compat.autograd.graph import Stamp, connect, stamp

__all__ = ["NO_RECEIVER", "Payload", "arrived", "leave", "pack", "seal", "unpack"]

Payload: TypeAlias = "tuple[bytes, list[Any], dict[int, Any] | None, Stamp | None]"

NO_RECEIVER = -1


class _PicklingThread(threading.local):
    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.leaving: dict[int, Any] = {}
        self.arriving: dict[int, Any] | None = None


_here = _PicklingThread()


def leave(reference: Any) -> int:
    """Put a reference into the table of what this thread pickles; return its number there."""
    number = next(_here.numbers)
    _here.leaving[number] = reference
    return number


def arrived(number: int) -> Any:
    """Return a reference of the payload that this thread reads."""
    arriving = _here.arriving
    if arriving is None:
        raise RuntimeError("an RRef can only be read as part of an RPC")
    return arriving[number]


def seal(data: bytes, tensors: list[Any], to: int = NO_RECEIVER) -> Payload:
    """Make the payload of what torch's pickler has made, with the references that it left out.

    `to` is the receiver, needed only where an autograd context may be.
    """
    context = CONTEXTS.here()
    stamped = None if context is None else stamp(tensors, to, context)
    leaving = _here.leaving
    if not leaving:
        return data, tensors, None, stamped
    _here.leaving = {}
    return data, tensors, leaving, stamped


def pack(value: Any, to: int = NO_RECEIVER) -> Payload:
    """Make the payload of a value for a worker, by torch's own pickler."""
    outer, _here.leaving = _here.leaving, {}
    try:
        data, tensors = _internal().serialize(value)
        return seal(data, tensors, to)
    finally:
        _here.leaving = outer


def unpack(payload: Payload) -> Any:
    """Return the value of a payload."""
    data, tensors, references, stamped = payload
    if stamped is not None:
        connect(tensors, stamped)
    outer, _here.arriving = _here.arriving, references
    try:
        return _internal().deserialize(data, tensors)
    finally:
        _here.arriving = outer


def _internal() -> Any:
    # Of torch's Python above us, which is imported after us.
    return sys.modules["torch.distributed.rpc.internal"]
