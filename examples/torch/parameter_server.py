"""A parameter server: trainers send it gradients, and get the new weights back.

    python parameter_server.py

The server steps once for the gradients of all trainers. Until they are there it answers none, and
no thread of it waits: `async_execution` lets a call return a future, whose value is the answer.
"""

from __future__ import annotations

import tempfile
import threading

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed import rpc
from torch.nn.functional import mse_loss

TRAINERS = 2
STEPS = 50
RATE = 0.1


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))


class ParameterServer:
    def __init__(self) -> None:
        self.weights = [weight.detach() for weight in new_model().parameters()]
        self.gradients: dict[int, list[Tensor]] = {}
        self.stepped = torch.futures.Future()
        self.lock = threading.Lock()

    @rpc.functions.async_execution
    def update(self, trainer: int, gradients: list[Tensor]) -> torch.futures.Future:
        """Take the gradients of one trainer; answer with the weights after the next step."""
        with self.lock:
            self.gradients[trainer] = gradients
            stepped = self.stepped
            if len(self.gradients) == TRAINERS:
                self.step()
                self.stepped = torch.futures.Future()
                stepped.set_result(self.weights)
        return stepped

    def step(self) -> None:
        in_order = [self.gradients.pop(trainer) for trainer in sorted(self.gradients)]
        for weight, *gradients in zip(self.weights, *in_order, strict=True):
            weight.sub_(RATE * torch.stack(gradients).mean(dim=0))


def train(server: rpc.RRef, trainer: int) -> float:
    """Learn from this trainer's part of the data; return the last loss."""
    model = new_model()
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(trainer))
    targets = inputs.sin().sum(dim=1, keepdim=True)
    for _ in range(STEPS):
        loss = mse_loss(model(inputs), targets)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        weights = server.rpc_sync().update(trainer, list(gradients))
        for mine, new in zip(model.parameters(), weights, strict=True):
            mine.data.copy_(new)
    return mse_loss(model(inputs), targets).item()


def run(rank: int, meeting: str) -> None:
    rpc.init_rpc(
        "server" if rank == 0 else f"trainer{rank}",
        rank=rank,
        world_size=1 + TRAINERS,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=meeting, rpc_timeout=300),
    )
    if rank == 0:
        server = rpc.RRef(ParameterServer())
        trainers = range(1, 1 + TRAINERS)
        futures = [rpc.rpc_async(f"trainer{one}", train, (server, one)) for one in trainers]
        losses = torch.futures.wait_all(futures)
        norm = sum(weight.norm().item() for weight in server.local_value().weights)
        print(f"after {STEPS} steps: losses {losses}, norm of the weights {norm}")
    rpc.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        # Forked, the workers need not import torch again.
        mp.start_processes(
            run, args=(f"file://{folder}/meeting",), nprocs=1 + TRAINERS, start_method="fork"
        )
