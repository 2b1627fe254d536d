"""How a leader takes care of its members."""

from __future__ import annotations

import random

from holdfast.store.raft.machine import Raft
from holdfast.store.raft.messages import ChangeKind, Configuration, MemberChange
from holdfast.store.replica.care import LOST_S, SETTLED_S, MemberCare


def test_a_member_is_lost_when_it_was_silent_for_too_long() -> None:
    raft = Raft(1, Configuration((1,), (2,)), random.Random(1))
    raft.campaign()
    care = MemberCare(raft)
    assert care.wanted_change(0.0) is None
    assert not care.is_settled(0.0)  # the learner has nothing of the log yet
    care.heard(2, 1.0)
    assert care.wanted_change(1.0 + LOST_S) is None
    assert care.wanted_change(1.1 + LOST_S) == MemberChange(ChangeKind.REMOVE, 2)
    care.begin_anew()
    assert care.wanted_change(1.1 + LOST_S) is None


def test_members_are_settled_when_all_were_heard_of_a_short_time_ago() -> None:
    raft = Raft(1, Configuration((1, 2, 3)), random.Random(1))
    care = MemberCare(raft)
    assert care.wanted_change(0.0) is None
    assert not care.is_settled(0.0)  # one of them may have died before this one led
    for member in (2, 3):
        care.heard(member, 0.0)
    assert care.is_settled(SETTLED_S)
    assert not care.is_settled(SETTLED_S + 0.1)
