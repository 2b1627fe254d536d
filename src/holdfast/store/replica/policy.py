"""Which change of the members a leader asks for next.

A member that joins listens first (a learner), and votes once it has caught up. A learner that is
silent may be dead, and would be a voter that the majority lacks, so it waits. The number of voters
is kept odd: an even number needs one more for its majority, and survives no more losses; the
voter that is too many becomes a learner again. A voter that is lost is removed when that helps:
when another member can take its place, when the number of voters is even, when two of five are
lost, or when it is hosted by a process that joins anew by itself. Otherwise it stays, since it may
only be cut off, and its removal would not make the store survive one loss more. It is removed
before the other member votes, and not after: docs/decisions/029-replacing-a-voter.md. A member that
wants to leave is removed while the rest is a majority that is heard, so that the store does not
lack it later; if the leader wants to leave, it needs another voter.

Guarantees
    RP-1  A member becomes a voter only after it has caught up, and never while it is silent. An odd
          number of voters grows only while all of them are heard, or to replace a leader that
          leaves.
    RP-2  The voters are an odd number, VOTERS_MAX at most, except while one change follows another.
    RP-3  A voter that neither is lost nor wants to leave is never removed, and a lost one only if
          that lets the store survive at least as many further losses of voters as before.
    RP-4  A voter that leaves is removed only while a majority of the others is heard.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.store.raft.messages import ChangeKind, Configuration, MemberChange

__all__ = ["MEMBERS_MAX", "VOTERS_MAX", "next_change", "successors"]

VOTERS_MAX = 5
MEMBERS_MAX = 9


def next_change(
    configuration: Configuration,
    lost: Collection[int],
    silent: Collection[int],
    caught_up: Collection[int],
    *,
    leader: int,
    leaving: Collection[int] = (),
    hosted: Collection[int] = (),
) -> MemberChange | None:
    """Return the change to ask for, or None if the members are as they should be.

    The lost members are silent, too, but for longer.
    """
    voters, learners = configuration.voters, configuration.learners
    for member in learners:
        if member in lost or member in leaving:
            return MemberChange(ChangeKind.REMOVE, member)
    spares = [member for member in learners if member in caught_up and member not in silent]
    is_even = len(voters) % 2 == 0
    removed = _to_remove(voters, lost, hosted, helps=bool(spares) or is_even)
    if removed is None:
        removed = _to_release(voters, silent, leaving, leader)
    if removed is not None:
        return MemberChange(ChangeKind.REMOVE, removed)
    may_grow = len(spares) > 1 and not any(voter in silent for voter in voters)
    needed = leader in leaving and not successors(configuration, silent, leaving, leader)
    if spares and len(voters) < VOTERS_MAX and (is_even or may_grow or needed):
        return MemberChange(ChangeKind.VOTER, spares[0])
    if is_even and not learners and leader not in leaving:
        others = [voter for voter in voters if voter != leader and voter not in silent]
        if others:
            return MemberChange(ChangeKind.LEARNER, others[-1])
    return None


def successors(
    configuration: Configuration,
    silent: Collection[int],
    leaving: Collection[int],
    leader: int,
) -> list[int]:
    """Return the voters that a leader can hand over to when it leaves."""
    return [
        voter
        for voter in configuration.voters
        if voter != leader and voter not in silent and voter not in leaving
    ]


def _to_remove(
    voters: tuple[int, ...], lost: Collection[int], hosted: Collection[int], *, helps: bool
) -> int | None:
    """Return the lost voter to remove, if one is to be."""
    lost_voters = [voter for voter in voters if voter in lost]
    if len(voters) <= 2:
        return None
    if helps or len(lost_voters) > 1:
        return next(iter(lost_voters), None)
    return next((voter for voter in lost_voters if voter in hosted), None)


def _to_release(
    voters: tuple[int, ...], silent: Collection[int], leaving: Collection[int], leader: int
) -> int | None:
    """Return the voter that leaves now, if one may (RP-4)."""
    for voter in voters:
        rest = [other for other in voters if other != voter]
        heard = sum(other not in silent for other in rest)
        if voter in leaving and voter != leader and 2 * heard > len(rest):
            return voter
    return None
