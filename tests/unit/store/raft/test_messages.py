"""Configurations of a Raft cluster, and how changes lead from one to the next."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.store.raft.messages import ChangeKind, Configuration, LogEntry, MemberChange

VOTER, LEARNER, REMOVE = ChangeKind


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (MemberChange(VOTER, 4), Configuration((1, 2, 4), (3,))),
        (MemberChange(VOTER, 3), Configuration((1, 2, 3), ())),
        (MemberChange(VOTER, 1), Configuration((1, 2), (3,))),
        (MemberChange(LEARNER, 0), Configuration((1, 2), (0, 3))),
        (MemberChange(LEARNER, 1), Configuration((2,), (1, 3))),
        (MemberChange(REMOVE, 2), Configuration((1,), (3,))),
        (MemberChange(REMOVE, 3), Configuration((1, 2), ())),
        (MemberChange(REMOVE, 9), Configuration((1, 2), (3,))),
    ],
    ids=str,
)
def test_a_change_of_one_member(change: MemberChange, after: Configuration) -> None:
    assert Configuration((1, 2), (3,)).after(change) == after


def test_one_voter_at_least_is_left() -> None:
    """RF-9."""
    for kind in (REMOVE, LEARNER):
        with pytest.raises(UsageError, match=f"change '{kind} 1': would leave no voter"):
            Configuration((1,), (2,)).after(MemberChange(kind, 1))


def test_members_and_majorities() -> None:
    assert Configuration((1, 4), (3,)).members == (1, 3, 4)
    sizes = {n: Configuration(tuple(range(n))).quorum for n in range(1, 6)}
    assert sizes == {1: 1, 2: 2, 3: 2, 4: 3, 5: 3}


def test_an_entry_is_empty_unless_it_says_something() -> None:
    assert LogEntry(2, 7) == LogEntry(term=2, index=7, data=b"", change=None)
