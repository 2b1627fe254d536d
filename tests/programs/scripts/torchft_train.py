"""One replica group of torchft: trains together with the other groups of its lighthouse."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

group = int(os.environ["REPLICA_GROUP_ID"])
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
inner = torch.optim.SGD(model.parameters(), lr=0.1)


def load(state: dict[str, object]) -> None:
    """Take over what another group has come to."""
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
    min_replica_size=2,
    load_state_dict=load,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
    replica_id=f"group_{group}",
    use_async_quorum=False,
)
replicated = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, inner)
while manager.current_step() < 5:
    step = manager.current_step()
    draw = torch.Generator().manual_seed(10 * step + group)
    inputs = torch.randn(16, 4, generator=draw)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(replicated(inputs), inputs.sum(dim=1, keepdim=True))
    loss.backward()
    optimizer.step()
    print(f"\nfigure group {group} step {step} loss {loss.item():.7f}\n", end="", flush=True)
print(f"\nfigure group {group} of {manager.num_participants()}\n", end="", flush=True)
manager.shutdown(wait=False)
