"""Ranks are consecutive by node, in the world and in each role, and equal torch's own."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.roles import (
    ROLE_MAX,
    WORKERS_MAX,
    NodeInfo,
    NodeShare,
    WorkerRanks,
    decode_node,
    decode_share,
    divide,
)
from holdfast.errors import PeerViolation, UsageError

HETEROGENEOUS = tuple(
    NodeInfo(role, workers)
    for role, workers in [
        ("master", 8),
        ("trainer", 1),
        ("trainer", 2),
        ("trainer", 3),
        ("trainer", 4),
        ("ps", 5),
        ("ps", 2),
    ]
)
HOMOGENEOUS = (
    NodeInfo("master", 1),
    *[NodeInfo("trainer", 4)] * 4,
    *[NodeInfo("ps", 3)] * 2,
)
MIXED = (NodeInfo("a", 2), NodeInfo("b", 1), NodeInfo("a", 3), NodeInfo("b", 2), NodeInfo("a", 1))

nodes_of_a_round = st.lists(
    st.builds(NodeInfo, st.sampled_from(["", "a", "b", "über"]), st.integers(1, 9)),
    min_size=1,
    max_size=12,
)


def everyone(nodes: tuple[NodeInfo, ...]) -> list[WorkerRanks]:
    return [worker for share in divide(nodes) for worker in share.worker_ranks()]


def test_one_node_of_a_round_with_several_roles() -> None:
    assert divide(MIXED)[2].worker_ranks() == tuple(
        WorkerRanks(
            local_rank=local,
            rank=3 + local,
            world_size=9,
            local_world_size=3,
            group_rank=2,
            group_world_size=5,
            role="a",
            role_rank=2 + local,
            role_world_size=6,
        )
        for local in range(3)
    )


class Vast(int):
    """A number of workers that is too large to count up to."""

    def __index__(self) -> int:
        raise AssertionError("somebody goes through the workers of another node")


def test_ro3_the_workers_of_other_nodes_cost_nothing() -> None:
    nodes = (NodeInfo("a", 2), NodeInfo("a", 1), NodeInfo("b", 1))
    for other in nodes[1:]:
        object.__setattr__(other, "workers", Vast(1 << 40))
    assert [worker.rank for worker in divide(nodes)[0].worker_ranks()] == [0, 1]


@given(nodes_of_a_round)
def test_ranks_are_consecutive_by_group_rank(nodes: list[NodeInfo]) -> None:
    """RO-1."""
    workers = everyone(tuple(nodes))
    size = sum(node.workers for node in nodes)
    assert [worker.rank for worker in workers] == list(range(size))
    assert {worker.world_size for worker in workers} == {size}
    assert [(w.group_rank, w.local_rank) for w in workers] == [
        (group, local) for group, node in enumerate(nodes) for local in range(node.workers)
    ]
    assert {w.group_world_size for w in workers} == {len(nodes)}
    assert all(w.local_world_size == nodes[w.group_rank].workers for w in workers)


@given(nodes_of_a_round)
def test_role_ranks_are_consecutive_within_each_role(nodes: list[NodeInfo]) -> None:
    """RO-2."""
    workers = everyone(tuple(nodes))
    for role in {node.role for node in nodes}:
        size = sum(node.workers for node in nodes if node.role == role)
        of_role = [worker for worker in workers if worker.role == role]
        assert [worker.role_rank for worker in of_role] == list(range(size))
        assert {worker.role_world_size for worker in of_role} == {size}


class Agent:
    """As much of torch's agent as assigns ranks."""

    @staticmethod
    def ranks(nodes: tuple[NodeInfo, ...]) -> list[tuple[int, int, int, int, int]]:
        dist = pytest.importorskip("torch.distributed")
        from torch.distributed.elastic.agent.server import SimpleElasticAgent

        store, found = dist.HashStore(), []
        # Node 0 assigns once all have said what they are, and comes last therefore.
        for group_rank, node in enumerate(nodes):
            info = {"role": node.role, "rank": group_rank, "local_world_size": node.workers}
            store.set(f"torchelastic/role_info/{group_rank}", json.dumps(info))
        for group_rank, node in enumerate(nodes):
            spec = SimpleNamespace(role=node.role, local_world_size=node.workers)
            assigned = SimpleElasticAgent._assign_worker_ranks(
                SimpleNamespace(), store, group_rank, len(nodes), spec
            )
            found += [
                (w.local_rank, w.global_rank, w.world_size, w.role_rank, w.role_world_size)
                for w in assigned
            ]
        return found


@pytest.mark.parametrize("nodes", [HETEROGENEOUS, HOMOGENEOUS, MIXED], ids=str)
def test_torch_assigns_the_same(nodes: tuple[NodeInfo, ...]) -> None:
    ours = [
        (w.local_rank, w.rank, w.world_size, w.role_rank, w.role_world_size)
        for w in everyone(nodes)
    ]
    assert ours == Agent.ranks(nodes)


@given(nodes_of_a_round)
def test_a_share_is_read_as_it_was_told(nodes: list[NodeInfo]) -> None:
    for rank, share in enumerate(divide(nodes)):
        assert decode_share(share.encode(), nodes[rank], rank, len(nodes)) == share


def test_ro3_a_share_does_not_grow_with_the_number_of_nodes() -> None:
    few, many = (divide([NodeInfo("a", 8)] * count)[-1].encode() for count in (2000, 5000))
    assert len(few) == len(many) < 40


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[0, 2, 0]",
        b"[0, 2, 0, true]",
        b"[0, 2, 0, 2.0]",
        b"[-1, 2, 0, 2]",
        b"[1, 2, 0, 2]",
        b"[0, 1, 0, 1]",
        b"[0, 9, 1, 9]",
        b"[3, 9, 1, 2]",
        b"[3, 9, 1, 10]",
        b"[" * 100_000,
        b"[0, 2, 0, 2]" + b" " * 3000,
    ],
)
def test_what_is_no_share_is_refused(data: bytes) -> None:
    assert decode_share(b"[0, 2, 0, 2]", NodeInfo("a", 2), 0, 1) == NodeShare(
        "a", 2, 0, 1, 0, 2, 0, 2
    )
    with pytest.raises(PeerViolation, match="^ranks of a node: "):
        decode_share(data, NodeInfo("a", 2), 0, 1)


@pytest.mark.parametrize("role", ["", "trainer", "a b", "ü" * ROLE_MAX, '"', "\\", "☃" * ROLE_MAX])
@pytest.mark.parametrize("workers", [1, WORKERS_MAX])
def test_what_a_node_says_arrives(role: str, workers: int) -> None:
    node = NodeInfo(role, workers)
    assert decode_node(node.encode()) == node


@pytest.mark.parametrize("role", ["a\nb", "a\0", "x" * (ROLE_MAX + 1), 7, None])
def test_a_role_that_would_break_lines_or_variables_is_refused(role: str) -> None:
    with pytest.raises(UsageError, match=r"^role .*printable characters$"):
        NodeInfo(role, 1)


@pytest.mark.parametrize("workers", [0, -1, WORKERS_MAX + 1, True, 1.0, "1"])
def test_a_number_of_workers_that_is_none_is_refused(workers: int) -> None:
    with pytest.raises(UsageError, match=r"^workers .*: must be 1 to"):
        NodeInfo("a", workers)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"role": "a"}',
        b'{"role": "a", "workers": 1, "more": 1}',
        b'{"role": "a", "workers": 0}',
        b'{"role": "a", "workers": "1"}',
        b'{"role": 1, "workers": 1}',
        b'{"role": "\\u0000", "workers": 1}',
        b'{"role": "a", "workers": NaN}',
        b"\xff",
        b"[" * 2000,
        b'{"role": "a", "workers": 1}' + b" " * 3000,
    ],
)
def test_what_is_no_node_is_not_believed(data: bytes) -> None:
    with pytest.raises(PeerViolation, match="role of a node"):
        decode_node(data)
