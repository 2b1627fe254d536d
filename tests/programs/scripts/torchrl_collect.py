"""Collects frames of two environments by torchrl's collector over RPC; each in a process."""

from __future__ import annotations

import socket

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors.distributed import RPCCollector
from torchrl.envs import EnvBase
from torchrl.testing.mocking_classes import ContinuousActionVecMockEnv


def free_port() -> str:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def make_env() -> EnvBase:
    """Make an environment, in the process of a collector: the same in each."""
    torch.manual_seed(3)
    return ContinuousActionVecMockEnv()


if __name__ == "__main__":
    torch.manual_seed(7)
    env = make_env()
    policy = TensorDictModule(
        nn.Linear(env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]),
        in_keys=["observation"],
        out_keys=["action"],
    )
    collector = RPCCollector(
        [make_env] * 2,
        policy,
        frames_per_batch=40,
        total_frames=200,
        sync=True,
        launcher="mp",
        backend="gloo",
        tcp_port=free_port(),
    )
    for batch in collector:
        total = batch["action"].double().sum().item()
        print(f"\nfigure {batch.numel()} frames, actions {total:.6f}\n", end="", flush=True)
    collector.shutdown()
