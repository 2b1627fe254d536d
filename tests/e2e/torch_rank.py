"""A program that is one worker of a torch job: sums over all ranks, then again in pairs.

Usage: torch_rank.py RANK WORLD PORT PAIR_PORT. Joins the group of WORLD at PORT, then leaves it and
joins a group of two at PAIR_PORT. Prints both sums as one JSON list.
"""

from __future__ import annotations

import json
import os
import sys


def total(rank: int, world: int, port: int) -> float:
    import torch
    import torch.distributed as dist

    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(world),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    dist.init_process_group("gloo", init_method="env://")
    tensor = torch.tensor([10.0**rank])
    dist.all_reduce(tensor)
    dist.barrier()
    dist.destroy_process_group()
    return float(tensor.item())


def main() -> None:
    rank, world, port, pair_port = map(int, sys.argv[1:])
    print(json.dumps([total(rank, world, port), total(rank % 2, 2, pair_port)]), flush=True)


if __name__ == "__main__":
    main()
