"""The announcement of one node: no write that comes late undoes a newer one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import LeaseLost, TimeoutExpired
from holdfast.ids import LeaseId, NodeId
from holdfast.rendezvous.effects import RoundOver, RoundReady
from holdfast.rendezvous.model import Announcement, Phase
from holdfast.rendezvous.presence import Presence
from holdfast.store.ops import CompareSet, LeaseRevoke, Swap
from tests.unit.rendezvous.by_hand import KEYS, RULES, Driven, World, announced, pair

LEASE = LeaseId(3)
KEY = KEYS.node(NodeId("a"))
WAITING = Announcement(NodeId("a"), "host-a", "127.0.0.1", 1, Phase.WAITING, 0, None, "")
WORKING = replace(WAITING, phase=Phase.WORKING, round=1)
LEFT = replace(WORKING, phase=Phase.LEFT)


def test_what_is_stored_is_not_written_again() -> None:
    presence = Presence(KEY)
    assert presence.next_op(None, LEASE) is None
    op = presence.next_op(WAITING, LEASE)
    assert op == CompareSet(KEY, None, WAITING.encode(), LEASE)
    presence.answered(op, Swap(True, op.desired, 7))
    assert presence.next_op(WAITING, LEASE) is None
    assert presence.came == 7


def test_pr1_each_write_names_what_it_replaces() -> None:
    presence = Presence(KEY)
    presence.answered(CompareSet(KEY, None, WAITING.encode()), Swap(True, WAITING.encode(), 7))
    assert presence.next_op(WORKING, LEASE) == CompareSet(
        KEY, WAITING.encode(), WORKING.encode(), LEASE
    )
    assert presence.next_op(None, LEASE) == CompareSet(KEY, WAITING.encode(), None)


def test_what_a_node_says_when_it_leaves_outlives_its_lease() -> None:
    presence = Presence(KEY)
    assert presence.next_op(LEFT, LEASE) == CompareSet(KEY, None, LEFT.encode())


def test_a_write_that_was_performed_unheard_is_recognised() -> None:
    presence = Presence(KEY)
    op = CompareSet(KEY, None, WAITING.encode(), LEASE)
    presence.unanswered(op)
    presence.answered(op, Swap(False, WAITING.encode(), 7))
    assert presence.next_op(WAITING, LEASE) is None
    assert presence.came == 7
    # An earlier one of ours: the next write replaces that.
    presence.answered(CompareSet(KEY, b"", WORKING.encode()), Swap(False, WAITING.encode(), 8))
    assert presence.next_op(WORKING, LEASE) == CompareSet(
        KEY, WAITING.encode(), WORKING.encode(), LEASE
    )
    assert presence.came == 7


def test_pr2_a_node_that_may_still_be_announced_withdraws_with_its_lease() -> None:
    presence = Presence(KEY)
    presence.unanswered(CompareSet(KEY, None, WAITING.encode(), LEASE))
    assert presence.next_op(None, LEASE) == LeaseRevoke(LEASE)
    presence.lost()
    assert presence.next_op(None, LEASE) is None


def test_a_change_without_an_answer_needs_no_other_lease() -> None:
    presence = Presence(KEY)
    presence.answered(CompareSet(KEY, None, WAITING.encode()), Swap(True, WAITING.encode(), 7))
    presence.unanswered(CompareSet(KEY, WAITING.encode(), WORKING.encode(), LEASE))
    assert presence.next_op(None, LEASE) == CompareSet(KEY, WAITING.encode(), None)


# With the machine of the node, and a store.


def lose_answer(world: World, driven: Driven) -> CompareSet:
    """Let a node give up the write that is held back; it is still on its way."""
    late, driven.held, driven.hold = driven.held, None, None
    assert isinstance(late, CompareSet)
    driven.node.failed(TimeoutExpired("no answer", maybe_applied=True), world.now)
    return late


def test_pr1_an_announcement_that_comes_late_does_not_replace_a_newer_one() -> None:
    """A node that was taken for one at work in an old round would never get a place again."""
    world, a, b = pair()
    b.hold = CompareSet
    b.node.finish(world.now)
    b.step()
    late = lose_answer(world, b)
    for each in (a, b):
        each.node.ask("again", world.now)
    world.run(2)
    assert b.the(RoundReady).record.number == 2
    swap = world.apply(late)
    assert isinstance(swap, Swap)
    assert not swap.ok
    assert announced(world, "b").phase is Phase.WORKING
    assert announced(world, "b").round == 2


def test_pr2_a_late_first_announcement_does_not_announce_a_node_that_withdrew() -> None:
    world = World(RULES)
    a = world.add("a", ask=False)
    world.settle()
    a.hold = CompareSet
    a.node.ask("", world.now)
    a.step()
    late = lose_answer(world, a)
    a.node.withdraw(world.now)
    world.run(2)
    with pytest.raises(LeaseLost):
        world.apply(late)
    assert world.entry(KEY) is None
    assert a.node.leading  # again, with its new lease
    assert a.take(RoundOver) == []
    a.node.ask("", world.now)
    world.settle()
    assert announced(world, "a").phase is Phase.WAITING


def test_pr1_a_withdrawal_that_comes_late_does_not_remove_a_newer_wish() -> None:
    world = World(RULES)
    a = world.add("a")
    world.settle()
    a.hold = CompareSet
    a.node.withdraw(world.now)
    a.step()
    late = lose_answer(world, a)
    a.node.ask("", world.now)
    world.run(2)
    world.apply(late)
    assert announced(world, "a").phase is Phase.WAITING
