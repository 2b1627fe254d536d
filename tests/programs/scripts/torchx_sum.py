"""A program that torchx launches: each worker adds its number to those of the others."""

from __future__ import annotations

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(total)
figure = f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {total.item():.1f}"
print(f"\nfigure {figure}\n", end="", flush=True)
dist.destroy_process_group()
