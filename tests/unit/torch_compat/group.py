"""Workers of one group in one process: for tests of what stands between torch and our agents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.distributed.rpc import internal

from holdfast.torch_compat.rpc import agents
from holdfast.torch_compat.rpc.agents import TensorPipeAgent

__all__ = ["TRIPLE", "at_once", "group"]

WITHIN_S = 60.0
TRIPLE = "holdfast_test_triple"
"""A TorchScript function that every worker has compiled."""
torch.jit._state._python_cu.define(f"def {TRIPLE}(x: int) -> int:\n    return x * 3\n")


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Do these things at the same time; return what they returned, or raise what one raised."""
    found: list[Any] = [None] * len(acts)

    def run(place: int, act: Callable[[], Any]) -> None:
        try:
            found[place] = act()
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    for each in found:  # first: it may be why another one still waits
        if isinstance(each, BaseException):
            raise each
    assert not any(thread.is_alive() for thread in threads)
    return found


@contextmanager
def group(
    *names: str, kind: type[TensorPipeAgent] = TensorPipeAgent, options: Any = None
) -> Iterator[list[Any]]:
    """Have workers of these names, the first of them the current one of this process."""
    store = dist.HashStore()
    opts = options or rpc.TensorPipeRpcBackendOptions(rpc_timeout=30)

    def make(place: int) -> Callable[[], Any]:
        return lambda: kind(store, names[place], place, len(names), opts, {}, [])

    made = at_once(*map(make, range(len(names))))
    theirs = internal._get_current_rpc_agent
    try:
        internal._get_current_rpc_agent = agents.current  # as it is where we are installed
        agents.set_and_start(made[0])
        yield made
    finally:
        internal._get_current_rpc_agent = theirs
        agents.reset()
        for one in made:
            one.shutdown()
