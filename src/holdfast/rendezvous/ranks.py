"""Which nodes get in, and in which order: pure mathematics of a round's members.

Rule of places: a node that was in the round before comes first, then the one that has waited
longest. Rule of ranks: a node that stays keeps its rank; the free ranks go to the newcomers in the
natural order of their host names (node2 before node10). A node that requires a rank gets it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from holdfast.ids import NodeId
from holdfast.rendezvous.model import Announcement

__all__ = ["RankPolicy", "choose", "natural_key", "sticky_ranks"]

RankPolicy = Callable[[Sequence[Announcement], Sequence[NodeId]], Sequence[Announcement]]
"""Order the chosen nodes by rank, given the ids of the previous round in rank order."""

_NUMBERS = re.compile(r"(\d+)")


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts numbers inside names by their value."""
    parts = [part for part in _NUMBERS.split(text) if part]
    return tuple((0, int(p), p) if p.isdecimal() else (1, 0, p) for p in parts)


def choose(
    candidates: Sequence[Announcement], previous: Sequence[NodeId], limit: int
) -> list[Announcement]:
    """Return those of the candidates, given in order of arrival, that get a place."""
    was = {node: place for place, node in enumerate(previous)}
    late = len(was)
    # sorted() is stable, so equals stay in the order of arrival.
    return sorted(candidates, key=lambda node: was.get(node.node, late))[:limit]


def sticky_ranks(chosen: Sequence[Announcement], previous: Sequence[NodeId]) -> list[Announcement]:
    """Return the chosen nodes in rank order (the default `RankPolicy`)."""
    ranks: list[Announcement | None] = [None] * len(chosen)
    homeless = []
    was = {node: rank for rank, node in enumerate(previous)}
    for node in sorted(chosen, key=lambda node: (node.slot is None, was.get(node.node, len(was)))):
        wish = node.slot if node.slot is not None else was.get(node.node)
        if wish is not None and wish < len(ranks) and ranks[wish] is None:
            ranks[wish] = node
        else:
            homeless.append(node)
    homeless.sort(
        key=lambda node: (was.get(node.node, len(was)), natural_key(node.host), node.node)
    )
    rest = iter(homeless)
    return [node if node is not None else next(rest) for node in ranks]
