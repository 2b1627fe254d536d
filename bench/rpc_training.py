"""References and distributed training by torch's names: `remote`, backward passes, optimizers.

The caller's part; the functions at the top run at the callee. Both subjects are called by the same
lines of torch's API.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from bench.rpc_calls import same

__all__ = ["training"]

SIZE = 16
PARTS = ("forward", "backward", "step")


class Model(nn.Module):  # type: ignore[misc]
    """Two layers, so small that their arithmetic costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE))

    def forward(self, given: Any) -> Any:
        return self.layers(given)

    def references(self) -> list[Any]:
        """Return references to the parameters, for an optimizer elsewhere."""
        from torch.distributed import rpc

        return [rpc.RRef(parameter) for parameter in self.parameters()]


def training(
    to: str, repeated: Callable[[Callable[[], object], float, int], list[float]], seconds: float
) -> Iterator[tuple[str, float]]:
    """Measure references, backward passes, and the parts of training steps, with a worker."""
    from torch.distributed import rpc

    yield "references", _rate(repeated(partial(_refer, rpc, to), seconds, 20))
    yield "backward", _rate(repeated(partial(_call_and_back, rpc, to), seconds, 20))
    step = _Step(rpc, to)
    steps = repeated(step, seconds, 20)
    step.taken = step.taken[-len(steps) :]  # without those that warmed it up
    yield "steps", _rate(steps)
    for part, taken in zip(PARTS, zip(*step.taken, strict=True), strict=True):
        yield f"{part} ms", 1e3 * statistics.median(taken)


def _rate(taken: list[float]) -> float:
    """Return how many a second there are by the median, which a pause of the machine leaves."""
    return 1 / statistics.median(taken)


def _refer(rpc: Any, to: str) -> None:
    rpc.remote(to, same, (1,)).to_here()


def _call_and_back(rpc: Any, to: str) -> None:
    from torch.distributed import autograd

    with autograd.context() as context:
        given = torch.ones(2, 2, requires_grad=True)
        autograd.backward(context, [rpc.rpc_sync(to, same, (given,)).sum()])


class _Step:
    """A training step; `taken` has the times of forward, backward and the optimizer's step."""

    def __init__(self, rpc: Any, to: str) -> None:
        from torch.distributed.optim import DistributedOptimizer

        self._model = rpc.remote(to, Model)
        parameters = self._model.rpc_sync().references()
        self._optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.01)
        self._given = torch.ones(4, SIZE)
        self.taken: list[tuple[float, float, float]] = []

    def __call__(self) -> None:
        from torch.distributed import autograd

        with autograd.context() as context:
            begun = time.perf_counter()
            loss = self._model.rpc_sync().forward(self._given).sum()
            ahead = time.perf_counter()
            autograd.backward(context, [loss])
            back = time.perf_counter()
            self._optimizer.step(context)
            self.taken.append((ahead - begun, back - ahead, time.perf_counter() - back))
