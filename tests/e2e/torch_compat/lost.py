"""Workers of a distributed backward pass, of which one will be killed; see `test_autograd_lost`.

The pass goes from the first to the second, and from there to the third, which stays in the middle
of it until it may go on. Forked from a process that has torch, so this may import it.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.autograd import Function
from torch.distributed import autograd, rpc

from tests.e2e import entrypoints
from tests.waiting import until

__all__ = ["NAMES", "work"]

NAMES = ("first", "second", "third")


class Stays(Function):  # type: ignore[misc]  # it is torch's
    """In the backward pass, writes to one FIFO and waits for the other."""

    @staticmethod
    def forward(ctx: Any, value: Any, bell: str, door: str) -> Any:
        ctx.bell, ctx.door = bell, door
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        with open(ctx.bell, "w", encoding="ascii") as file:
            file.write("0 1\n")  # it is alone in that
        entrypoints.wait_for(ctx.door)
        return gradient, None, None


def at_second(value: Any, bell: str, door: str) -> Any:
    return rpc.rpc_sync("third", at_third, args=(value * 2, bell, door)) * 2


def at_third(value: Any, bell: str, door: str) -> Any:
    return Stays.apply(value, bell, door) * 2


def gradient_by(other: str) -> list[float]:
    """Return what a pass by way of another worker finds."""
    leaf = torch.ones(2, requires_grad=True)
    with autograd.context() as context:
        product = rpc.rpc_sync(other, torch.mul, args=(leaf, leaf))
        autograd.backward(context, [product.sum()])
        found: list[float] = autograd.get_gradients(context)[leaf].tolist()
    return found


def wait_until_nothing_is_left() -> None:
    """Wait until this worker has no pass and no context any more."""
    shown = autograd._get_debug_info
    until(lambda: all(count == "0" for count in shown().values()), shown)


def work(name: str, store: str, bell: str, door: str, told: Connection) -> None:
    """Be one of them; then do as told, until nothing more is.

    No call has a time limit: a worker that is not told of a loss waits forever.
    """
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}", rpc_timeout=0)
    rpc.init_rpc(name, rank=NAMES.index(name), world_size=3, rpc_backend_options=options)
    if name == "first":
        told.send(lose_a_worker(bell, door))
    orders: dict[str, Callable[..., Any]] = {
        "nothing": wait_until_nothing_is_left,
        "gradient": gradient_by,
    }
    while order := told.recv():
        told.send(orders[order[0]](*order[1:]))
    rpc.shutdown(graceful=False)


def lose_a_worker(bell: str, door: str) -> str:
    """Run the pass, and return its error."""
    leaf = torch.ones(2, requires_grad=True)
    with autograd.context() as context:
        loss = rpc.rpc_sync("second", at_second, args=(leaf, bell, door)).sum()
        try:
            autograd.backward(context, [loss])
        except RuntimeError as error:
            return str(error)
    return "nothing was lost"
