"""Trains by accelerate: each worker has its part of the data, and prints what all have come to."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(7)
accelerator = Accelerator(cpu=True)
inputs = torch.randn(64, 4)
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, batches = accelerator.prepare(
    model, optimizer, DataLoader(data, batch_size=8, shuffle=True)
)
for _ in range(3):
    losses = []
    for given, wanted in batches:
        loss = torch.nn.functional.mse_loss(model(given), wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean())
    accelerator.print(f"\nfigure {torch.stack(losses).mean().item():.7f}")
accelerator.print(f"\nfigure of {accelerator.num_processes} processes")
accelerator.end_training()
