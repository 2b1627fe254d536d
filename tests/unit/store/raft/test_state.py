"""What a member of a Raft cluster knows in every role."""

from __future__ import annotations

from holdfast.store.raft.effects import NeedSnapshot, ReadReady, SendMessage
from holdfast.store.raft.messages import Configuration, TimeoutNow
from holdfast.store.raft.state import MemberState


def test_founders_begin_behind_the_founding_and_others_with_nothing() -> None:
    founder, joiner = MemberState(1, Configuration((1, 2), (3,))), MemberState(4, None)
    assert (founder.term, founder.applied, founder.log.last_term) == (1, 1, 1)
    assert (joiner.term, joiner.applied, joiner.log.last_term) == (0, 0, 0)
    assert joiner.configuration == Configuration()


def test_voters_vote() -> None:
    founders = Configuration((1, 2), (3,))
    assert [MemberState(n, founders).votes for n in (1, 3, 4)] == [True, False, False]


def test_effects_are_taken_in_order_and_snapshots_come_last() -> None:
    """RF-4: a snapshot is of the state after all entries that were given out."""
    state = MemberState(1, Configuration((1, 2)))
    state.need_snapshot(2)
    state.want(ReadReady(1, b"x"))
    state.send(TimeoutNow(2, 1, 1))
    expected = [ReadReady(1, b"x"), SendMessage(TimeoutNow(2, 1, 1)), NeedSnapshot(2)]
    assert state.take_effects() == expected
    assert state.take_effects() == []
