"""A model whose two halves live at two workers, trained from a third by distributed autograd.

    torchrun --standalone --nproc-per-node 3 split_model.py

What the first half makes goes straight to the second: the trainer only holds a reference to it. The
gradients go the same way back, and the optimizer steps where the weights are.
"""

from __future__ import annotations

import os

import torch
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer
from torch.nn.functional import cross_entropy

WORKERS = ["trainer", "first", "second"]
STEPS = 60


class Half(nn.Module):
    def __init__(self, seed: int, inputs: int, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))

    def forward(self, inputs: rpc.RRef) -> Tensor:
        return self.layers(inputs.to_here())

    def weights(self) -> list[rpc.RRef]:
        return [rpc.RRef(weight) for weight in self.parameters()]


class Model:
    def __init__(self) -> None:
        self.first = rpc.remote("first", Half, (1, 2, 8))
        self.second = rpc.remote("second", Half, (2, 8, 2))

    def __call__(self, inputs: Tensor) -> Tensor:
        between = self.first.remote().forward(rpc.RRef(inputs))
        return self.second.rpc_sync().forward(between)

    def weights(self) -> list[rpc.RRef]:
        return self.first.rpc_sync().weights() + self.second.rpc_sync().weights()


def train() -> None:
    inputs = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long()  # no straight line parts them
    model = Model()
    optimizer = DistributedOptimizer(torch.optim.Adam, model.weights(), lr=0.03)
    losses = []
    for _ in range(STEPS):
        with dist_autograd.context() as context:
            loss = cross_entropy(model(inputs), targets)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
            losses.append(loss.item())
    right = int((model(inputs).argmax(dim=1) == targets).sum())
    print(f"loss {losses[0]} at first, {losses[-1]} at last; {right} of {len(inputs)} are right")


if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    rpc.init_rpc(
        WORKERS[rank],
        rank=rank,
        world_size=len(WORKERS),
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(rpc_timeout=300),
    )
    if rank == 0:
        train()
    rpc.shutdown()
