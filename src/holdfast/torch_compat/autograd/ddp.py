"""DDP in a context of distributed autograd, and the end of DDP.

DDP averages gradients between processes in hooks of what adds them to `.grad`. A backward pass of
ours takes gradients before they get there, and those hooks do not run. So where DDP has had a part
in a context, its pass adds gradients to `.grad` as well, and takes them from there.

A thread of gloo that has ended a collective needs the interpreter's lock to release a tensor that
Python made. What destroys a process group waits for these threads: torch's object of the group does
so without the lock, DDP's reducer with it. The reducer would be the last owner, and waits for ever
if such a thread has not had the lock yet.

Guarantees
    DP-1  Where a module in DDP has run in a context, the gradients of that context are those that
          DDP has made of them.
    DP-2  After a pass, a good or a bad one, `.grad` is what it was before.
    DP-3  Of such passes one at a time runs in a process. While it does, `.grad` is not to be used.
    DP-4  A module in DDP releases its process group after its reducer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from holdfast.torch_compat.autograd.contexts import CONTEXTS

__all__ = ["by_adding", "watch_ddp"]

_one_at_a_time = threading.Lock()
_post_forward = DistributedDataParallel._post_forward
_init_helper = DistributedDataParallel._ddp_init_helper


def watch_ddp() -> None:
    """From now on, note in which contexts modules in DDP run, and let them end well."""
    DistributedDataParallel._post_forward = _noting
    DistributedDataParallel._ddp_init_helper = _letting_go_in_order


def _letting_go_in_order(self: Any, *args: Any, **kwargs: Any) -> None:
    """Make the reducer; put the process group behind it, as attributes go in their order (DP-4)."""
    _init_helper(self, *args, **kwargs)
    attributes = vars(self)
    attributes["process_group"] = attributes.pop("process_group")


def _noting(self: Any, output: Any) -> Any:
    context = CONTEXTS.here()
    if context is not None and torch.is_grad_enabled() and self.require_backward_grad_sync:
        context.reduces = True
    return _post_forward(self, output)


def by_adding(
    variables: Sequence[Any], run: Callable[[], None], timeout: float | None
) -> list[Any]:
    """Let gradients be added to `.grad` of these; return what was (DP-2)."""
    if not _one_at_a_time.acquire(timeout=-1 if timeout is None else timeout):
        raise RuntimeError("another backward pass with DDP has run in this process all the time")
    try:
        before = [variable.grad for variable in variables]
        try:
            for variable in variables:
                variable.grad = None
            run()
            # A copy: DDP uses the memory of its buckets again.
            return [None if one.grad is None else one.grad.clone() for one in variables]
        finally:
            for variable, gradient in zip(variables, before, strict=True):
                variable.grad = gradient
    finally:
        _one_at_a_time.release()
