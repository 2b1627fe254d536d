"""Which change of the members a leader asks for: RP-1 to RP-3."""

from __future__ import annotations

import itertools

import pytest

from holdfast.store.raft.messages import ChangeKind, Configuration, MemberChange
from holdfast.store.replica.policy import VOTERS_MAX, next_change

REMOVE, VOTER, LEARNER = ChangeKind.REMOVE, ChangeKind.VOTER, ChangeKind.LEARNER


@pytest.mark.parametrize(
    ("voters", "learners", "silent", "caught_up", "change"),
    [
        ((1,), (), (), (), None),
        ((1,), (2,), (), (2,), None),  # two voters would survive no loss at all
        ((1,), (2, 3), (), (2,), None),
        ((1,), (2, 3), (), (2, 3), (VOTER, 2)),
        ((1, 2), (3,), (), (), None),  # RP-1
        ((1, 2), (3,), (), (3,), (VOTER, 3)),
        ((1, 2, 3), (), (), (), None),
        ((1, 2, 3), (), (3,), (), None),
        ((1, 2, 3), (4,), (), (4,), None),
        ((1, 2, 3), (4,), (4,), (4,), (REMOVE, 4)),
        ((1, 2, 3), (4,), (3,), (4,), (REMOVE, 3)),
        ((1, 2), (4,), (), (4,), (VOTER, 4)),
        ((1, 2, 3, 4), (), (4,), (), (REMOVE, 4)),
        ((1, 2, 3, 4, 5), (), (5,), (), None),
        ((1, 2, 3, 4, 5), (), (4, 5), (), (REMOVE, 4)),
        ((1, 2, 3, 4, 5), (6, 7), (), (6, 7), None),
        ((1, 2), (), (2,), (), None),
    ],
)
def test_the_next_change(
    voters: tuple[int, ...],
    learners: tuple[int, ...],
    silent: tuple[int, ...],
    caught_up: tuple[int, ...],
    change: tuple[ChangeKind, int] | None,
) -> None:
    """All silent members are lost here."""
    wanted = None if change is None else MemberChange(*change)
    assert (
        next_change(Configuration(voters, learners), silent, silent, caught_up, leader=1) == wanted
    )


@pytest.mark.parametrize(
    ("voters", "learners", "silent", "change"),
    [
        ((1,), (2, 3), (2,), None),
        ((1, 2), (3,), (3,), None),
        ((1, 2), (3, 4), (3,), (VOTER, 4)),
        ((1, 2, 3), (4, 5), (), (VOTER, 4)),
        ((1, 2, 3), (4, 5), (3,), None),  # a voter may be dead: first wait whether it is
        ((1, 2, 3, 4), (5,), (4,), (VOTER, 5)),
    ],
)
def test_rp1_a_member_that_may_be_dead_gets_no_vote(
    voters: tuple[int, ...],
    learners: tuple[int, ...],
    silent: tuple[int, ...],
    change: tuple[ChangeKind, int] | None,
) -> None:
    """None of the silent members is lost yet."""
    wanted = None if change is None else MemberChange(*change)
    assert next_change(Configuration(voters, learners), (), silent, learners, leader=1) == wanted


@pytest.mark.parametrize(
    ("voters", "learners", "silent", "leaving", "change"),
    [
        ((1,), (2,), (), (2,), (REMOVE, 2)),
        ((1, 2, 3), (), (), (2,), (REMOVE, 2)),
        ((1, 2, 3), (), (3,), (2,), None),  # RP-4
        ((1, 2), (), (), (2,), (REMOVE, 2)),
        ((1, 2), (), (2,), (2,), (REMOVE, 2)),
        ((1, 2, 3), (), (), (1,), None),  # it hands over to one of them
        ((1, 2), (), (), (1,), None),
        ((1,), (2,), (), (1,), (VOTER, 2)),  # to which it can hand over then
        ((1,), (2,), (2,), (1,), None),
        ((1,), (2,), (), (1, 2), (REMOVE, 2)),
        ((1, 2, 3), (), (), (1, 2, 3), (REMOVE, 2)),
        ((1, 2), (), (), (), (LEARNER, 2)),  # RP-2
        ((1, 2), (), (2,), (), None),
        ((1, 2, 3, 4), (), (), (), (LEARNER, 4)),
    ],
)
def test_rp4_members_that_leave(
    voters: tuple[int, ...],
    learners: tuple[int, ...],
    silent: tuple[int, ...],
    leaving: tuple[int, ...],
    change: tuple[ChangeKind, int] | None,
) -> None:
    """The member 1 leads, all learners have caught up, and no member is lost."""
    wanted = None if change is None else MemberChange(*change)
    configuration = Configuration(voters, learners)
    found = next_change(configuration, (), silent, learners, leader=1, leaving=leaving)
    assert found == wanted


def test_rp3_a_hosted_voter_that_is_lost_is_removed_though_none_takes_its_place() -> None:
    three = Configuration((1, 2, 3))
    assert next_change(three, (2,), (2,), (), leader=1) is None
    change = next_change(three, (2,), (2,), (), leader=1, hosted=(2, 3))
    assert change == MemberChange(REMOVE, 2)
    assert next_change(Configuration((1, 2)), (2,), (2,), (), leader=1, hosted=(2,)) is None


def test_rp2_rp3_changes_come_to_an_end_with_an_odd_number_of_voters() -> None:
    members = range(1, 8)
    for count, lost_count in itertools.product(members, range(4)):
        configuration = Configuration((1,), tuple(range(2, count + 1)))
        configuration = settle(configuration, set())
        assert len(configuration.voters) == min(VOTERS_MAX, count - (count + 1) % 2)
        lost = set(configuration.voters[1 : 1 + lost_count])
        if 2 * len(lost) >= len(configuration.voters):
            continue
        before = tolerance(configuration, lost)
        after = settle(configuration, lost)
        assert set(configuration.voters) - set(after.voters) <= lost
        assert tolerance(after, lost) >= before


def tolerance(configuration: Configuration, lost: set[int]) -> int:
    """Return how many more voters may be lost."""
    return len(set(configuration.voters) - lost) - configuration.quorum


def settle(configuration: Configuration, lost: set[int]) -> Configuration:
    for _ in range(20):
        change = next_change(configuration, lost, lost, configuration.learners, leader=1)
        if change is None:
            return configuration
        configuration = configuration.after(change)
    raise AssertionError(f"changes without an end: {configuration}")
