"""Distributed autograd, by the names of torch's binding, and what workers ask each other for it.

Guarantees
    DA-1  `backward` returns when all workers that gradients went to are done; the first worker to
          send another one gradients of a pass hears when that one is.
    DA-2  A pass that fails at one worker, or because one is lost, ends everywhere. Each worker that
          has a part in it was asked by one that has: that one hears it with the answer, and it
          tells those that it has asked, and all that have the context from it. A worker
          that was asked by one that is lost finds its connection closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from holdfast.errors import HoldfastError
from holdfast.rpc.api import async_execution
from holdfast.rpc.client.future import Future
from holdfast.torch_compat.autograd.contexts import (
    CONTEXTS,
    DistAutogradContext,
    asker_lost,
    release,
)
from holdfast.torch_compat.autograd.engine import Pass, Roots
from holdfast.torch_compat.rpc.agents import current
from holdfast.torch_compat.rpc.futures import as_torch_error
from holdfast.torch_compat.tensors.devices import Gradients

__all__ = ["AUTOGRAD_NAMES", "backward", "end_pass", "get_gradients", "take_gradients"]


def _release_context(number: int) -> None:
    """Release a context here and everywhere."""
    CONTEXTS.find(number)
    release(current(), number)


def _is_valid_context(number: int) -> None:
    """Raise if there is no context of that number."""
    CONTEXTS.find(number)


def get_gradients(context_id: int) -> dict[Any, Any]:
    """Return the gradients of this worker's leaves in a context."""
    context = CONTEXTS.find(context_id)
    with context.lock:
        return dict(context.gradients)


def backward(context_id: int, roots: Sequence[Any], retain_graph: bool = False) -> None:
    """Run the backward pass from these roots, at all workers that had a part in them."""
    if (
        not isinstance(context_id, int)
        or not isinstance(roots, list | tuple)
        or not all(isinstance(root, torch.Tensor) for root in roots)
    ):
        raise TypeError(
            "backward(): incompatible function arguments. The following argument types are "
            "supported: (context_id: int, roots: list[torch.Tensor], retain_graph: bool = False)"
        )
    context = CONTEXTS.find(context_id)
    begin = _roots(roots)
    if not torch.autograd._profiler_enabled():
        _run(context, begin, retain_graph)
        return
    with torch.autograd.profiler.record_function("torch::distributed::autograd::backward"):
        _run(context, begin, retain_graph)


def _run(context: DistAutogradContext, begin: Roots, retain_graph: bool) -> None:
    one = Pass(context, CONTEXTS.new_message(), bool(retain_graph), _send)
    _enter(one)
    try:
        one.run(begin)
        one.future.wait()
    except HoldfastError as error:
        raise as_torch_error(error) from None
    except Exception as error:
        if not one.has_heard:
            raise
        # As torch says it of an error in what others have set going.
        raise RuntimeError(f"Error on Node {CONTEXTS.worker}: {error}") from error


def _roots(roots: Sequence[Any]) -> Roots:
    if not roots:
        raise RuntimeError("No tensors provided for gradient computation.")
    found: Roots = []
    for root in roots:
        name = root.name or "root"
        if not root.requires_grad:
            raise RuntimeError(f"requires_grad not set on {name}")
        if root.numel() != 1:
            raise RuntimeError(f"{name} is not a scalar, all roots need to be scalar")
        if root.grad_fn is None:
            raise RuntimeError(f"{name} does not have a valid gradient function.")
        gradient = torch.ones_like(root, memory_format=torch.preserve_format)
        found.append((GradientEdge(root.grad_fn, root.output_nr), gradient))
    return found


# Between workers.


def _enter(one: Pass) -> Pass:
    """Let a pass be known, unless it is over; return the one that is known of that number."""
    context = one.context
    with context.lock:
        if context.is_released:
            raise RuntimeError(f"Could not find autograd context with id: {context.number}")
        if one.number in context.over and one.number not in context.passes:
            raise RuntimeError(f"backward pass {one.number} is over")
        entered: Pass = context.passes.setdefault(one.number, one)
    if entered is one:
        one.future.add_done_callback(lambda _: _tell_failure(one))
    return entered


def _send(one: Pass, message: int, worker: int, gradients: list[Any]) -> Future[Any]:
    core = current().core
    me = (core.contact.incarnation, CONTEXTS.worker)
    args = (me, one.context.number, one.number, message, Gradients(gradients), one.retain_graph)
    sent: Future[Any] = core.call_async(worker, take_gradients, args)
    return sent


@async_execution
def take_gradients(
    asker: tuple[str, int],
    context_id: int,
    number: int,
    message: int,
    gradients: list[Any],
    retain_graph: bool,
) -> Any:
    """Go on with a pass; answer the first caller when this worker's part is done (DA-1)."""
    context = CONTEXTS.find(context_id)
    try:
        made = Pass(context, number, retain_graph, _send, *asker)
        one = _enter(made)
        one.come(message, gradients)
        if one is not made:
            return None
        life, _ = asker
        if _has_hung_up(life):  # before the pass was known
            one.fail(asker_lost(current().core.worker_name(life)))
        one.run([])
    except Exception as error:
        raise RuntimeError(f"Error on Node {CONTEXTS.worker}: {error}") from None
    if one.future.done():
        return _answer(one)
    return one.future.then(lambda _: _answer(one))


def _answer(one: Pass) -> Any:
    back = one.answer()
    return Gradients(back) if back else None


def _has_hung_up(asker: str) -> bool:
    core = current().core
    return asker != core.contact.incarnation and not core.server.has_pipe(asker)


def end_pass(context_id: int, number: int, why: str) -> None:
    """Hear that a pass has failed; tell on, if this is news."""
    try:
        context = CONTEXTS.find(context_id)
    except RuntimeError:
        return
    with context.lock:
        one = context.passes.get(number)
        is_news = number not in context.over
        context.over.add(number)
    if one is not None:
        one.fail(RuntimeError(why))
    elif is_news:
        _fail_elsewhere(context, number, why, set())


def _tell_failure(one: Pass) -> None:
    error = one.future.exception()
    if error is not None:
        _fail_elsewhere(one.context, one.number, str(error), one.asked)


def _fail_elsewhere(context: DistAutogradContext, number: int, why: str, asked: set[int]) -> None:
    """Tell all workers that may have a part in a pass that it has failed (DA-2)."""
    try:
        core = current().core
    except RuntimeError:  # this worker has left
        return
    args = (context.number, number, why)
    for worker in context._known_worker_ids() | asked:
        try:
            core.call_async(worker, end_pass, args)
        except (HoldfastError, RuntimeError):  # it is gone
            continue


AUTOGRAD_NAMES: dict[str, Any] = {
    "DistAutogradContext": DistAutogradContext,
    "_current_context": CONTEXTS.current,
    "_get_debug_info": CONTEXTS.counts,
    "_get_max_id": lambda: CONTEXTS.largest,
    "_init": CONTEXTS.begin,
    "_is_valid_context": _is_valid_context,
    "_new_context": CONTEXTS.make,
    "_release_context": _release_context,
    "_retrieve_context": CONTEXTS.find,
    "backward": backward,
    "get_gradients": get_gradients,
}
