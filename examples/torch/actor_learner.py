"""An actor-learner loop: actors play episodes with the newest policy, the learner learns from them.

    python actor_learner.py

The actors live at their workers, the learner at its own; each knows the other by a reference. The
learner waits for the episodes of all actors and takes them in order: so every run is the same.
"""

from __future__ import annotations

import tempfile

import torch
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed import rpc
from torch.distributions import Categorical

ACTORS = 2
ROUNDS = 20
EPISODES = 8  # by each actor in each round


class Corridor:
    """Seven cells in a row. The right end is worth 1, the left end nothing, each step costs."""

    CELLS, START, COST, SLIP = 7, 2, 0.02, 0.1

    def __init__(self, chance: torch.Generator) -> None:
        self.chance = chance
        self.cell = self.START

    def step(self, action: int) -> tuple[float, bool]:
        """Go left (0) or right (1), and now and then the other way."""
        slips = float(torch.rand((), generator=self.chance)) < self.SLIP
        self.cell += 1 if (action == 1) != slips else -1
        won = self.cell == self.CELLS - 1
        return float(won) - self.COST, won or self.cell == 0


class Actor:
    def __init__(self, seed: int) -> None:
        self.chance = torch.Generator().manual_seed(seed)

    def play(self, learner: rpc.RRef) -> list[tuple[Tensor, Tensor, float]]:
        """Play episodes by the learner's policy: for each the cells, the actions, the return."""
        policy = learner.rpc_sync().policy()
        return [self.episode(policy) for _ in range(EPISODES)]

    def episode(self, policy: Tensor) -> tuple[Tensor, Tensor, float]:
        corridor = Corridor(self.chance)
        cells, actions, total, over = [], [], 0.0, False
        while not over:
            cells.append(corridor.cell)
            probabilities = policy[corridor.cell]
            actions.append(int(torch.multinomial(probabilities, 1, generator=self.chance)))
            reward, over = corridor.step(actions[-1])
            total += reward
        return torch.tensor(cells), torch.tensor(actions), total


class Learner:
    def __init__(self) -> None:
        self.logits = torch.zeros(Corridor.CELLS, 2, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.logits], lr=0.2)

    def policy(self) -> Tensor:
        return self.logits.detach().softmax(dim=1)

    def learn(self, episodes: list[tuple[Tensor, Tensor, float]]) -> float:
        """Make actions of good episodes more likely; return how good they were on average."""
        mean = sum(total for _, _, total in episodes) / len(episodes)
        loss = torch.zeros(())
        for cells, actions, total in episodes:
            likelihood = Categorical(logits=self.logits[cells]).log_prob(actions).sum()
            loss = loss - (total - mean) * likelihood
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return mean


def lead() -> None:
    learner = Learner()
    here = rpc.RRef(learner)
    actors = [rpc.remote(f"actor{one}", Actor, (one,)) for one in range(1, 1 + ACTORS)]
    means = []
    for _ in range(ROUNDS):
        plays = torch.futures.wait_all([actor.rpc_async().play(here) for actor in actors])
        means.append(learner.learn([episode for episodes in plays for episode in episodes]))
    right = float(learner.policy()[Corridor.START, 1])
    print(f"mean return {means[0]} at first, {means[-1]} at last; goes right with {right}")


def run(rank: int, meeting: str) -> None:
    rpc.init_rpc(
        "learner" if rank == 0 else f"actor{rank}",
        rank=rank,
        world_size=1 + ACTORS,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=meeting, rpc_timeout=300),
    )
    if rank == 0:
        lead()
    rpc.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        # Forked, the workers need not import torch again.
        mp.start_processes(
            run, args=(f"file://{folder}/meeting",), nprocs=1 + ACTORS, start_method="fork"
        )
