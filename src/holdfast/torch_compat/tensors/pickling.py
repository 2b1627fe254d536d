"""How tensors are pickled in messages of agents by torch's names.

A small tensor goes as numpy shows it: core's own way asks torch about more than that needs, and
asking is most of what a small tensor costs.

Guarantees
    TN-1  A tensor arrives with its strides; of what it is a view of, nothing else is sent. If its
          strides take twice the memory of its elements, and GAPS_BYTES or more, it arrives without
          the gaps.
    TN-2  A tensor that requires a gradient arrives as a leaf that does, unless its message collects
          such tensors (`autograd/stamps.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from holdfast.rpc.values import pickling

__all__ = ["SMALL_BYTES", "Collector", "Reducer", "collecting", "reduce_strided", "reduce_tensor"]

Reducer: TypeAlias = Callable[[Any], Any]

SMALL_BYTES = 4096
"""Larger ones are sent from where they lie, by core's own way."""

GAPS_BYTES = 8192
"""Room between elements is kept within less than this: torch's own RPC has the same limit."""

_NAMES = {
    dtype: torch.empty(0, dtype=dtype).numpy().dtype.str
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
}
"""What numpy calls torch's types."""


class Collector(Protocol):
    """A message that collects the tensors in it that require gradients."""

    def collect(self, tensor: Any, reduce: Reducer) -> Any:
        """Reduce such a tensor, which `reduce` reduces without its gradient; None to leave it."""
        ...


class _Collecting(threading.local):
    head: Collector | None = None


collecting = _Collecting()
"""The message of this thread that collects tensors, if it pickles one."""


def reduce_tensor(tensor: Any) -> Any:
    """Reduce a tensor."""
    name, grad = _NAMES.get(tensor.dtype), tensor.requires_grad
    if grad and collecting.head is not None:
        collected = collecting.head.collect(tensor, reduce_tensor)
        if collected is not None:
            return collected
    if name is None or not tensor.is_cpu or tensor.__dict__:
        return _reduce_other(tensor)
    try:
        array = tensor.numpy(force=True) if grad else tensor.numpy()
    except (RuntimeError, TypeError):  # it is sparse, say
        return _reduce_other(tensor)
    if not 0 < array.nbytes <= SMALL_BYTES or not array.flags.c_contiguous:
        return _reduce_other(tensor)
    return _rebuild, (array.tobytes(), name, array.shape, grad)


def _rebuild(data: bytes, name: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    tensor = torch.from_numpy(np.ndarray(shape, name, bytearray(data)))
    return tensor.requires_grad_() if requires_grad else tensor


def _reduce_other(tensor: Any) -> Any:
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return pickling.reduce_tensor(tensor)
    if not pickling.is_plain(tensor):
        return pickling.reduce_tensor(tensor)
    return reduce_strided(tensor, reduce_tensor)


def reduce_strided(tensor: Any, reduce: Reducer) -> Any:
    """Reduce a tensor whose elements do not lie side by side: as one where they do (TN-1)."""
    dense = tensor.detach()
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0:  # an element that counts many times is sent once
            dense = dense.narrow(axis, 0, 1)
    elements = dense.contiguous()
    strides = elements.stride() if _is_full_of_gaps(dense) else dense.stride()
    facts = (tuple(tensor.shape), strides, tensor.requires_grad)
    return _rebuild_strided, (*reduce(elements), *facts)


def _is_full_of_gaps(tensor: Any) -> bool:
    span = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return bool(span * tensor.element_size() >= GAPS_BYTES and span >= tensor.numel() * 2)


def _rebuild_strided(
    rebuild: Callable[..., Any],
    parts: tuple[Any, ...],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
) -> Any:
    tensor = rebuild(*parts)
    if tensor.stride() != strides:
        room = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
        tensor = room.copy_(tensor)
    tensor = tensor.expand(shape)
    return tensor.requires_grad_() if requires_grad else tensor
