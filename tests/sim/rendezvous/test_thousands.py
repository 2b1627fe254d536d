"""What a node pays for a join and a restart, in rounds of very different sizes.

The nodes that are looked at, and the leader, are the product's own machines; what all others write
is put into the store beside them. Operations are counted at the machine's effects. Bytes are those
of operations, of their results, and of the changes that the node's watch delivers.
"""

from __future__ import annotations

import pytest

from holdfast.ids import NodeId
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.effects import RoundReady
from holdfast.rendezvous.model import PAGE_MEMBERS, Announcement, Phase
from holdfast.store.ops import AnyOp, Guarded, MultiSet
from tests.unit.rendezvous.by_hand import KEYS, Driven, World, record

DIGITS = 80
"""By how many bytes larger numbers may be, all together."""


class Meter:
    """Counts what a node asks for and hears."""

    def __init__(self, node: Driven) -> None:
        self.node = node
        self.bytes = 0
        perform, changed = node.perform, node.node.changed

        def performed(op: AnyOp) -> None:
            self.bytes += len(repr(op))
            perform(op)

        def heard(changes: object, now: float) -> None:
            self.bytes += len(repr(changes))
            changed(changes, now)  # type: ignore[arg-type]

        node.perform = performed  # type: ignore[method-assign]
        node.node.changed = heard  # type: ignore[method-assign]
        real = node.world.apply

        def apply(op: AnyOp) -> object:
            result = real(op)
            if node.ops and node.ops[-1] is op:
                self.bytes += len(repr(result))
            return result

        node.world.apply = apply  # type: ignore[method-assign]

    def take(self) -> tuple[int, int]:
        """Return operations and bytes so far, and forget them."""
        ops, self.node.ops = len(self.node.ops), []
        size, self.bytes = self.bytes, 0
        return ops, size


def announce(world: World, first: int, size: int, round_: int) -> None:
    """Let all nodes from `first` on ask for a round, or for another one."""
    said = (
        Announcement(
            NodeId(f"n{n:06}"), "host", "10.0.0.1", 1, Phase.WAITING, round_, None, "", round_
        )
        for n in range(first, size)
    )
    items = tuple((KEYS.node(one.node), one.encode()) for one in said)
    world.apply(MultiSet(items))


def costs(size: int) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Return what a join and a restart cost a member, and the leader's operations for both."""
    world = World(Rules(min_nodes=size, max_nodes=size, keep_alive_s=500.0, lease_s=1000.0))
    leader, member = world.add("n000000"), world.add("n000001")
    meter = Meter(member)
    announce(world, 2, size, 0)
    world.settle()
    assert member.the(RoundReady).record.size == record(world).size == size
    join = meter.take()
    for each in (leader, member):
        each.node.ask("a worker failed", world.now)
    announce(world, 2, size, 1)
    world.settle()
    assert member.the(RoundReady).record.number == record(world).number == 2
    return join, meter.take(), len(leader.ops)


@pytest.fixture(scope="module")
def few() -> tuple[tuple[int, int], tuple[int, int], int]:
    return costs(1024)


def test_what_a_member_of_16_000_pays_is_what_one_of_1024_pays(
    few: tuple[tuple[int, int], tuple[int, int], int],
) -> None:  # RM-1, ND-5
    many = costs(16_000)
    for small, large in zip(few[:2], many[:2], strict=True):
        assert isinstance(small, tuple)
        assert isinstance(large, tuple)
        assert small[0] == large[0] <= 8
        assert abs(large[1] - small[1]) <= DIGITS
        assert large[1] < 8_000


def test_the_leader_pays_for_each_page_and_not_for_each_node(
    few: tuple[tuple[int, int], tuple[int, int], int],
) -> None:  # RM-2
    pages = 2 * -(-1024 // PAGE_MEMBERS)
    assert few[2] - pages < 20


def test_a_page_is_a_bounded_write() -> None:  # RM-2
    world = World(Rules(min_nodes=1024, max_nodes=1024, keep_alive_s=500.0, lease_s=1000.0))
    leader = world.add("n000000")
    announce(world, 1, 1024, 0)
    world.settle()
    pages = [op.op for op in leader.ops if isinstance(op, Guarded) and isinstance(op.op, MultiSet)]
    assert len(pages) == 11
    assert max(sum(len(k) + len(v) for k, v in page.items) for page in pages) < 32 * 1024
