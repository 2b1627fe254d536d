"""The ranks of workers: in the world, on their node, and among those of their role.

Every node of a round says its role and how many workers it runs; each then computes the ranks of
its own workers from what all have said. No node assigns ranks to another.

Guarantees
    RO-1  The ranks of a round are 0 … world size - 1, each given once; those of a node follow one
          another, and those of a node of higher group rank are higher.
    RO-2  The same holds among the workers of one role, for role ranks and the role's world size.
    RO-3  The cost is one step for each node and one for each worker of this node.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.errors import PeerViolation, UsageError
from holdfast.records import dataclass

__all__ = ["ROLE_MAX", "WORKERS_MAX", "NodeInfo", "WorkerRanks", "assign", "decode_node"]

ROLE_MAX = 128
WORKERS_MAX = 1 << 16
_BYTES_MAX = 2048


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node of a round says of itself: the role of its workers, and their number."""

    role: str
    workers: int

    def __post_init__(self) -> None:
        role = self.role
        if not isinstance(role, str) or len(role) > ROLE_MAX or not role.isprintable():
            raise UsageError(f"role {role!r:.80}: at most {ROLE_MAX} printable characters")
        if type(self.workers) is not int or not 1 <= self.workers <= WORKERS_MAX:
            raise UsageError(f"workers {self.workers!r:.80}: must be 1 to {WORKERS_MAX}")

    def encode(self) -> bytes:
        """Return it as JSON, for the other nodes of the round."""
        return json.dumps({"role": self.role, "workers": self.workers}).encode()


def decode_node(data: bytes) -> NodeInfo:
    """Read what another node says of itself; PeerViolation if it makes no sense."""
    try:
        plain = json.loads(data) if len(data) <= _BYTES_MAX else None
        if isinstance(plain, dict) and plain.keys() == {"role", "workers"}:
            return NodeInfo(**plain)
    except (ValueError, RecursionError):  # not JSON, or a role or a number out of bounds
        pass
    raise PeerViolation(f"role of a node: {data[:60]!r} is none")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRanks:
    """Every rank and size that a worker is told; a group is the workers of one node."""

    local_rank: int
    rank: int
    world_size: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    role: str
    role_rank: int
    role_world_size: int


def assign(nodes: Sequence[NodeInfo], group_rank: int) -> tuple[WorkerRanks, ...]:
    """Return the ranks of the workers of node `group_rank`; `nodes` are all, by group rank."""
    if not 0 <= group_rank < len(nodes):
        raise UsageError(f"group rank {group_rank}: must be 0 to {len(nodes) - 1}")
    own = nodes[group_rank]
    first = first_of_role = world_size = role_world_size = 0
    for place, node in enumerate(nodes):
        if place == group_rank:
            first, first_of_role = world_size, role_world_size
        world_size += node.workers
        if node.role == own.role:
            role_world_size += node.workers
    return tuple(
        WorkerRanks(
            local_rank=local_rank,
            rank=first + local_rank,
            world_size=world_size,
            local_world_size=own.workers,
            group_rank=group_rank,
            group_world_size=len(nodes),
            role=own.role,
            role_rank=first_of_role + local_rank,
            role_world_size=role_world_size,
        )
        for local_rank in range(own.workers)
    )
