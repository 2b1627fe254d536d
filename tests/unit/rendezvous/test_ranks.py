"""OwnRank and ranks, against the rules put naively."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ids import NodeId
from holdfast.rendezvous.model import Announcement, Phase
from holdfast.rendezvous.ranks import choose, natural_key, sticky_ranks


def node(name: str, slot: int | None = None, host: str | None = None) -> Announcement:
    return Announcement(NodeId(name), host or name, "127.0.0.1", 1, Phase.WAITING, 0, slot, "")


def names(nodes: Sequence[Announcement]) -> list[str]:
    return [node.node for node in nodes]


def ids(*names: str) -> list[NodeId]:
    return [NodeId(name) for name in names]


@pytest.mark.parametrize(
    "ordered",
    [
        ["node1", "node2", "node10"],
        ["node2", "node010", "node10"],
        ["a", "a1", "a1b", "a2", "b"],
        ["1", "2", "10", "a"],
        ["gpu-1-2", "gpu-1-10", "gpu-2-1"],
        ["", "0", "x"],
        ["n1[7]", "n1[80]", "n2[1]", "n10[1]"],
    ],
)
def test_names_sort_as_people_count(ordered: list[str]) -> None:
    for shuffled in itertools.permutations(ordered):
        assert sorted(shuffled, key=natural_key) == ordered


@given(st.lists(st.text(max_size=8), max_size=6))
def test_any_names_can_be_sorted(texts: list[str]) -> None:
    backwards = sorted(texts, reverse=True)
    assert sorted(backwards, key=natural_key) == sorted(sorted(texts), key=natural_key)


def test_newcomers_rank_in_the_natural_order_of_their_hosts() -> None:
    nodes = [node("a", host="node10"), node("b", host="node2"), node("c", host="node1")]
    assert names(sticky_ranks(nodes, [])) == ["c", "b", "a"]


def test_one_host_is_ordered_by_id() -> None:
    nodes = [node("b", host="h"), node("a", host="h")]
    assert names(sticky_ranks(nodes, [])) == ["a", "b"]


def test_a_node_that_stays_keeps_its_rank_and_new_nodes_fill_the_gaps() -> None:
    nodes = [node("new10"), node("d"), node("a"), node("new2")]
    assert names(sticky_ranks(nodes, ids("a", "b", "c", "d"))) == ["a", "new2", "new10", "d"]


def test_a_node_that_stays_moves_only_if_its_rank_is_gone() -> None:
    nodes = [node("d"), node("c"), node("b")]
    assert names(sticky_ranks(nodes, ids("a", "b", "c", "d"))) == ["d", "b", "c"]


def test_a_slot_goes_before_a_kept_rank() -> None:
    nodes = [node("a"), node("b", slot=0), node("c")]
    assert names(sticky_ranks(nodes, ids("a", "c"))) == ["b", "c", "a"]


def test_slots_are_ranks() -> None:
    nodes = [node("x", slot=2), node("y", slot=0), node("z", slot=1)]
    assert names(sticky_ranks(nodes, ids("x", "y", "z"))) == ["y", "z", "x"]


def test_old_members_come_first_and_waiting_nodes_in_order_of_arrival() -> None:
    nodes = [node("late1"), node("b"), node("late2"), node("a")]
    assert names(choose(nodes, ids("a", "b"), 3)) == ["a", "b", "late1"]
    assert names(choose(nodes, [], 2)) == ["late1", "b"]
    assert names(choose(nodes, ids("a"), 9)) == ["a", "late1", "b", "late2"]


# Against an oracle that says the rules one after the other.


def oracle(chosen: Sequence[Announcement], previous: Sequence[NodeId]) -> list[str]:
    size = len(chosen)
    free = set(range(size))
    ranks: dict[int, str] = {}
    left = {node.node: node for node in chosen}
    old = [left[name] for name in previous if name in left]
    new = [node for node in chosen if node.node not in previous]
    for one in old + new:  # first nodes that require a rank: old ones in order, then others
        if one.slot is not None and one.slot in free:
            free.remove(one.slot)
            ranks[one.slot] = left.pop(one.node).node
    for rank, name in enumerate(previous):  # then the node that had the rank
        if name in left and left[name].slot is None and rank in free:
            free.remove(rank)
            ranks[rank] = left.pop(name).node
    rest = [one.node for one in old if one.node in left]
    rest += sorted(
        (one.node for one in new if one.node in left),
        key=lambda name: (natural_key(left[name].host), name),
    )
    ranks |= dict(zip(sorted(free), rest, strict=True))
    return [ranks[rank] for rank in range(size)]


NAMES = st.sampled_from([NodeId(f"n{number}") for number in range(12)])
NODES = st.lists(
    st.builds(
        node,
        NAMES,
        st.none() | st.none() | st.integers(0, 7),
        st.sampled_from(["h1", "h2", "h10", "x"]),
    ),
    max_size=8,
    unique_by=lambda node: node.node,
)
PREVIOUS = st.lists(NAMES, max_size=8, unique=True)


@settings(max_examples=1000)
@given(NODES, PREVIOUS)
def test_ranks_are_what_the_rules_say(nodes: list[Announcement], previous: list[NodeId]) -> None:
    ranked = sticky_ranks(nodes, previous)
    assert names(ranked) == oracle(nodes, previous)
    assert sorted(names(ranked)) == sorted(names(nodes))  # RV-2: a permutation
    if all(node.slot is None for node in nodes):  # no node moves without need
        assert sticky_ranks(nodes, ids(*names(ranked))) == ranked


@settings(max_examples=1000)
@given(NODES, PREVIOUS, st.integers(0, 9))
def test_places_are_what_the_rules_say(
    nodes: list[Announcement], previous: list[NodeId], limit: int
) -> None:
    old = [name for name in previous if name in names(nodes)]
    new = [name for name in names(nodes) if name not in previous]
    assert names(choose(nodes, previous, limit)) == (old + new)[:limit]
