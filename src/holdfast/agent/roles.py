"""The ranks of workers: in the world, on their node, and among those of their role.

Every node of a round says its role and how many workers it runs. Node 0 divides the ranks between
the nodes, once (`divide`), and each node computes the ranks of its own workers from its share.

Guarantees
    RO-1  The ranks of a round are 0 … world size - 1, each given once; those of a node follow one
          another, and those of a node of higher group rank are higher.
    RO-2  The same holds among the workers of one role, for role ranks and the role's world size.
    RO-3  Node 0 pays one step for each node, and every node one for each of its own workers.
          A share has the same size, whatever the number of nodes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from holdfast.errors import PeerViolation, UsageError
from holdfast.records import dataclass

__all__ = [
    "ROLE_MAX",
    "WORKERS_MAX",
    "NodeInfo",
    "NodeShare",
    "WorkerRanks",
    "decode_node",
    "decode_share",
    "divide",
]

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
    raise PeerViolation(f"role of a node: {data[:60]!r} is malformed")


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


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The ranks of one node's workers: the first of them, in the world and among their role.

    `world_size` and `role_world_size` count the workers of all nodes.
    """

    role: str
    workers: int
    group_rank: int
    group_world_size: int
    first: int
    world_size: int
    first_of_role: int
    role_world_size: int

    def worker_ranks(self) -> tuple[WorkerRanks, ...]:
        """Return the ranks of the node's workers."""
        return tuple(
            WorkerRanks(
                local_rank=local_rank,
                rank=self.first + local_rank,
                world_size=self.world_size,
                local_world_size=self.workers,
                group_rank=self.group_rank,
                group_world_size=self.group_world_size,
                role=self.role,
                role_rank=self.first_of_role + local_rank,
                role_world_size=self.role_world_size,
            )
            for local_rank in range(self.workers)
        )

    def encode(self) -> bytes:
        """Return what node 0 tells the node: the numbers that it does not know."""
        return json.dumps(
            [self.first, self.world_size, self.first_of_role, self.role_world_size]
        ).encode()


def divide(nodes: Sequence[NodeInfo]) -> tuple[NodeShare, ...]:
    """Return the shares of all nodes, which are given by group rank."""
    sizes: Counter[str] = Counter()
    firsts = []
    world_size = 0
    for node in nodes:
        firsts.append((world_size, sizes[node.role]))
        world_size += node.workers
        sizes[node.role] += node.workers
    return tuple(
        NodeShare(
            *(node.role, node.workers, group_rank, len(nodes)),
            *(first, world_size, first_of_role, sizes[node.role]),
        )
        for group_rank, (node, (first, first_of_role)) in enumerate(zip(nodes, firsts, strict=True))
    )


def decode_share(data: bytes, mine: NodeInfo, rank: int, nodes: int) -> NodeShare:
    """Read this node's share, as node 0 tells it; PeerViolation if it makes no sense."""
    try:
        plain = json.loads(data) if len(data) <= _BYTES_MAX else None
    except (ValueError, RecursionError):
        plain = None
    if isinstance(plain, list) and [type(one) for one in plain] == [int] * 4:
        first, world_size, first_of_role, role_world_size = plain
        last = mine.workers
        if 0 <= first_of_role <= first and (
            first_of_role + last <= role_world_size <= world_size >= first + last
        ):
            return NodeShare(mine.role, mine.workers, rank, nodes, *plain)
    raise PeerViolation(f"ranks of a node: {data[:60]!r} is malformed")
