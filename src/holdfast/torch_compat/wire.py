"""What torch's pickler makes of a value, on its way: bytes, tensors, and references.

torch pickles a value before it is known to whom it goes. Tensors and references are left out of the
bytes: each is put into a table of the thread that pickles, and its place in the table is pickled in
its stead. The three travel together, as a *parcel*, and core pickles the tables: tensors from where
they lie, references as tickets for the worker that gets them.

Guarantees
    WI-1  A reference in a parcel is found by a number that is never used twice by its thread: what
          an earlier value that could not be pickled has left behind takes nobody's place.
    WI-2  A tensor arrives with its strides; of what it is a view of, nothing else is sent.
"""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any, TypeAlias

import torch

from holdfast.torch_compat.contexts import CONTEXTS
from holdfast.torch_compat.graph import Stamp, connect, stamp

__all__ = ["Parcel", "arrived", "leave", "pack", "seal", "unpack"]

Parcel: TypeAlias = "tuple[bytes, list[Any], dict[int, Any] | None, Stamp | None]"

NOBODY = -1


class _Here(threading.local):
    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.leaving: dict[int, Any] = {}
        self.arriving: dict[int, Any] | None = None


_here = _Here()


def leave(reference: Any) -> int:
    """Put a reference into the table of what this thread pickles; return its number there."""
    number = next(_here.numbers)
    _here.leaving[number] = reference
    return number


def arrived(number: int) -> Any:
    """Return a reference of the parcel that this thread reads."""
    arriving = _here.arriving
    if arriving is None:
        raise RuntimeError("an RRef can only be read as part of an RPC")
    return arriving[number]


def seal(data: bytes, tensors: list[Any], to: int = NOBODY) -> Parcel:
    """Make the parcel of what torch's pickler has made, with the references that it left out.

    `to` is who gets it; nobody need be named where no context of autograd can be.
    """
    context = CONTEXTS.here()
    stamped = None if context is None else stamp(tensors, to, context)
    for place, tensor in enumerate(tensors):
        if _has_gaps(tensor):
            tensors[place] = _Strided(tensor)
    leaving = _here.leaving
    if not leaving:
        return data, tensors, None, stamped
    _here.leaving = {}
    return data, tensors, leaving, stamped


def pack(value: Any, to: int = NOBODY) -> Parcel:
    """Make the parcel of a value for a worker, by torch's own pickler."""
    outer, _here.leaving = _here.leaving, {}
    try:
        data, tensors = _internal().serialize(value)
        return seal(data, tensors, to)
    finally:
        _here.leaving = outer


def unpack(parcel: Parcel) -> Any:
    """Return the value of a parcel."""
    data, tensors, references, stamped = parcel
    if stamped is not None:
        connect(tensors, stamped)
    outer, _here.arriving = _here.arriving, references
    try:
        return _internal().deserialize(data, tensors)
    finally:
        _here.arriving = outer


def _has_gaps(tensor: Any) -> bool:
    return bool(
        tensor.layout is torch.strided
        and not tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
    )


class _Strided:
    """A tensor whose elements do not lie side by side: its strides travel with it (WI-2)."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        tensor = self._tensor.detach()
        for axis, stride in enumerate(tensor.stride()):
            if stride == 0:  # an element that counts many times is sent once
                tensor = tensor.narrow(axis, 0, 1)
        facts = (tuple(self._tensor.shape), tensor.stride(), self._tensor.requires_grad)
        return _rebuild_strided, (tensor.contiguous(), *facts)


def _rebuild_strided(
    elements: Any, shape: tuple[int, ...], strides: tuple[int, ...], requires_grad: bool
) -> Any:
    room = torch.empty_strided(
        elements.shape, strides, dtype=elements.dtype, device=elements.device
    )
    tensor = room.copy_(elements).expand(shape)
    return tensor.requires_grad_() if requires_grad else tensor


def _internal() -> Any:
    # Of torch's Python above us, which is imported after us.
    return sys.modules["torch.distributed.rpc.internal"]
