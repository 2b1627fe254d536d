"""What distributed autograd adds to torch's graph: where tensors leave this worker, and arrive.

A message that is sent within a context carries a *stamp*: the context, who sent it, and, if tensors
in it require gradients, the number of the message and which ones they are. Those get a send
function at the sender and a recv function at the receiver, found by the number of the message. In
the backward pass gradients go the other way: from the recv function to the send function.

Guarantees
    GR-1  The next functions of a send function are those of the tensors, in their order; each
          tensor that arrived and requires a gradient is an output of the recv function.
    GR-2  A reply that comes when its context has been released joins no graph.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.autograd import Function
from torch.autograd.function import FunctionMeta

from holdfast.torch_compat.contexts import CONTEXTS, DistAutogradContext

__all__ = ["Recv", "Stamp", "connect", "stamp", "working"]

Stamp: TypeAlias = "tuple[int, int, int, tuple[int, ...]]"
"""The context, the sender, the number of the message, and the places of tensors in it."""


class Recv(NamedTuple):
    """A recv function: its node, who has the send function, and like what its outputs are."""

    node: Any
    worker: int
    like: list[tuple[Any, Any, Any]]

    def zeros(self, place: int) -> Any:
        """Return the gradient of an output that nothing depends on."""
        shape, dtype, device = self.like[place]
        return torch.zeros(shape, dtype=dtype, device=device)


def _function(name: str, forward: Any) -> Any:
    """Return a function whose nodes have the names that torch gives them."""

    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "this graph goes on at another worker: use torch.distributed.autograd.backward"
        )

    parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return FunctionMeta(f"torch::distributed::autograd::{name}", (Function,), parts)


_SendRpc = _function("SendRpc", lambda ctx, *tensors: torch.empty(0))
_RecvRpc = _function("RecvRpc", lambda ctx, token, tensors: tuple(tensors))


def stamp(tensors: list[Any], to: int, context: DistAutogradContext) -> Stamp:
    """Make the stamp of a message to a worker; its tensors are put in without their history."""
    places = tuple(place for place, one in enumerate(tensors) if one.requires_grad)
    number = CONTEXTS.new_message() if places else 0
    node = None
    if places:
        with torch.enable_grad():
            node = _SendRpc.apply(*(tensors[place] for place in places)).grad_fn
        for place in places:
            tensors[place] = tensors[place].detach()
    with context.lock:
        if node is not None:
            context.sends[number] = node
        context.workers.add(to)
    return context.number, CONTEXTS.worker, number, places


def working(stamped: Stamp | None) -> AbstractContextManager[None]:
    """Let this thread work in the context of what came with a stamp, if there is one."""
    if stamped is None:
        return nullcontext()
    return CONTEXTS.within(CONTEXTS.join(stamped[0]).number)


def connect(tensors: list[Any], stamped: Stamp) -> None:
    """Make what came with a stamp a part of the graph."""
    context_number, sender, number, places = stamped
    if not places:
        return
    try:
        context = CONTEXTS.find(context_number)
    except RuntimeError:
        for place in places:
            tensors[place].requires_grad_()
        return
    arrived = [tensors[place] for place in places]
    token = torch.zeros((), requires_grad=True)  # an output requires a gradient if an input does
    with torch.enable_grad():
        outputs = _RecvRpc.apply(token, arrived)
    for place, output in zip(places, outputs, strict=True):
        tensors[place] = output
    like = [(one.shape, one.dtype, one.device) for one in outputs]
    with context.lock:
        context.recvs[number] = Recv(outputs[0].grad_fn, sender, like)
