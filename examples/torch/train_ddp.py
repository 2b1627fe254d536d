"""Data-parallel training that survives a crash: all workers start again from the last checkpoint.

    torchrun --standalone --nproc-per-node 2 --max-restarts 2 train_ddp.py FOLDER --crash-at 17

With `--crash-at` worker 1 is killed before that step, once. The result is the same as without.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS = 30
SAVE_EVERY = 5


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Make the data of one step for one worker, the same after a restart."""
    inputs = torch.randn(32, 3, generator=torch.Generator().manual_seed(1000 * step + rank))
    return inputs, inputs.sin().sum(dim=1, keepdim=True)


def train(file: Path, crash_at: int | None) -> None:
    rank = dist.get_rank()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    done = 0
    if file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
    if rank == 0:
        print(f"attempt {attempt} begins after step {done}", flush=True)
    for step in range(done + 1, STEPS + 1):
        if rank == 1 and step == crash_at and attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, targets = batch(step, rank)
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
        if rank == 0 and step % SAVE_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, file.with_suffix(".new"))
            file.with_suffix(".new").rename(file)  # whole, or not at all
    if rank == 0:
        inputs, targets = batch(step=0, rank=0)  # which no step has used
        loss = mse_loss(model.module(inputs), targets).item()
        norm = sum(weight.norm().item() for weight in model.parameters())
        print(f"after {STEPS} steps: loss {loss}, norm of the weights {norm}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--crash-at", type=int)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    train(args.folder / "checkpoint.pt", args.crash_at)
    dist.destroy_process_group()
