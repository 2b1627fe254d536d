"""What distributed autograd adds to torch's graph: where tensors leave this worker, and arrive.

A message that is sent within a context carries a *stamp*: the context, its sender, and, if tensors
in it require gradients, the number of the message and which ones they are. Those get a send
function at the sender and a recv function at the receiver, found by the number of the message. In
the backward pass gradients go the other way: from the recv function to the send function.

Guarantees
    GR-1  The next functions of a send function are those of the tensors, in their order; each
          tensor that arrived and requires a gradient is an output of the recv function.
    GR-2  A reply that comes when its context has been released joins no graph.
    GR-3  In the backward pass a send function runs after all recv functions that were made after
          it. Its own next functions do not say so; a chain of tokens does, one for each send
          function, of which each recv function has the last.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch.autograd import Function
from torch.autograd.function import FunctionMeta
from torch.autograd.graph import get_gradient_edge

from holdfast.torch_compat.autograd.contexts import CONTEXTS, DistAutogradContext

__all__ = ["FIRST_EDGE", "FIRST_TOKEN", "Stamp", "connect", "receive", "send", "stamp", "working"]

Stamp: TypeAlias = "tuple[int, int, int, tuple[int, ...]]"
"""The context, the sender, the number of the message, and the places of tensors in it."""


class _Sent(Function):  # type: ignore[misc]
    """Where tensors leave. In the backward pass their gradients come from afar."""

    @staticmethod
    def forward(ctx: Any, context: int, message: int, *tensors: Any) -> Any:
        ctx.context, ctx.message = context, message
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        gradients = _running(ctx.context).await_gradients(ctx.message)
        return None, None, *gradients


class _Received(Function):  # type: ignore[misc]
    """Where tensors arrive. In the backward pass their gradients go afar."""

    @staticmethod
    def forward(ctx: Any, token: Any, context: int, message: int, worker: int, *come: Any) -> Any:
        ctx.context, ctx.message, ctx.worker = context, message, worker
        ctx.mark_dirty(*come)  # they become its outputs in place: values that have them keep them
        return come

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _running(ctx.context).send_gradients(ctx.message, ctx.worker, list(gradients))
        return None, None, None, None, *(None for _ in gradients)


class _After(Function):  # type: ignore[misc]
    """A token: what has it runs, in the backward pass, before what it was made of (GR-3)."""

    @staticmethod
    def forward(ctx: Any, token: Any, sent: Any) -> Any:
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        return None, None


def _running(context: int) -> Any:
    found = CONTEXTS.find(context).running
    if found is None:
        raise RuntimeError(
            "this graph goes on at another worker: use torch.distributed.autograd.backward"
        )
    return found


def _named(name: str, function: Any) -> Any:
    """Return the function by the name after which torch calls its nodes."""
    return FunctionMeta(f"torch::distributed::autograd::{name}", (function,), {})


def _applying(function: Any) -> Callable[..., Any]:
    """Return what applies a function, without the look for transforms (`vmap`) before it."""
    apply: Callable[..., Any] = super(Function, function).apply
    return apply


_send_rpc = _applying(_named("SendRpc", _Sent))
_recv_rpc = _applying(_named("RecvRpc", _Received))
_after = _applying(_After)

FIRST_TOKEN = torch.empty(0, requires_grad=True)
"""The token of all that was received before anything was sent. Nothing is ever added to it, so all
contexts share it."""
FIRST_EDGE = get_gradient_edge(FIRST_TOKEN)


def stamp(tensors: list[Any], to: int, context: DistAutogradContext) -> Stamp:
    """Make the stamp of a message to a worker; its tensors are put in without their history."""
    places = tuple(place for place, one in enumerate(tensors) if one.requires_grad)
    with context.lock:
        context.workers.add(to)
    message = send([tensors[place] for place in places], context) if places else 0
    for place in places:
        tensors[place] = tensors[place].detach()
    return context.number, CONTEXTS.worker, message, places


def send(tensors: list[Any], context: DistAutogradContext) -> int:
    """Make the send function of tensors that leave; return the number of their message."""
    message = CONTEXTS.new_message()
    with context.lock, torch.enable_grad():
        sent = _send_rpc(context.number, message, *tensors)
        context.sends[message] = sent.grad_fn
        context.token = _after(_token(context), sent)
    return message


def _token(context: DistAutogradContext) -> Any:
    """Return the token of all that was sent so far in a context."""
    return FIRST_TOKEN if context.token is None else context.token


def working(stamped: Stamp | None) -> AbstractContextManager[None]:
    """Let this thread work in the context of what came with a stamp, if there is one."""
    if stamped is None:
        return nullcontext()
    number, sender, *_ = stamped
    return CONTEXTS.within(CONTEXTS.join(number, sender).number)


def connect(tensors: list[Any], stamped: Stamp) -> None:
    """Make what came with a stamp a part of the graph."""
    number, sender, message, places = stamped
    for place in places:
        if tensors[place]._is_view():
            tensors[place] = tensors[place].detach()
    if places:
        receive([tensors[place] for place in places], number, message, sender)


def receive(tensors: list[Any], number: int, message: int, sender: int) -> None:
    """Make tensors that have arrived, none of them a view, outputs of one recv function."""
    try:
        context = CONTEXTS.find(number)
    except RuntimeError:
        for tensor in tensors:
            tensor.requires_grad_()
        return
    with context.lock, torch.enable_grad():
        outputs = _recv_rpc(_token(context), context.number, message, sender, *tensors)
        context.recvs[message] = outputs[0].grad_fn
