"""Which change of the members a leader asks for next.

A member that joins listens first (a learner), and votes once it has caught up. A learner that is
silent may be dead, and would be a voter that the majority lacks, so it waits. The number of voters
is kept odd: an even number needs one more for its majority, and survives no more losses. A voter
that is lost is removed when that helps: when another member can take its place, when the number of
voters is even, or when two of five are lost. Otherwise it stays, since it may only be cut off, and
its removal would not make the store survive one loss more. It is removed before the other member
votes, and not after: docs/decisions/029-replacing-a-voter.md.

Guarantees
    RP-1  A member becomes a voter only after it has caught up, and never while it is silent. An odd
          number of voters grows only while all of them are heard.
    RP-2  The voters are an odd number, VOTERS_MAX at most, except while one change follows another.
    RP-3  A voter that is not lost is never removed, and a lost one only if that lets the store
          survive at least as many further losses as before.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.store.raft.messages import ChangeKind, Configuration, MemberChange

__all__ = ["MEMBERS_MAX", "VOTERS_MAX", "next_change"]

VOTERS_MAX = 5
MEMBERS_MAX = 9


def next_change(
    configuration: Configuration,
    lost: Collection[int],
    silent: Collection[int],
    caught_up: Collection[int],
) -> MemberChange | None:
    """Return the change to ask for, or None if the members are as they should be.

    The lost members are silent, too, but for longer.
    """
    voters, learners = configuration.voters, configuration.learners
    spares = [member for member in learners if member in caught_up and member not in silent]
    for member in learners:
        if member in lost:
            return MemberChange(ChangeKind.REMOVE, member)
    lost_voters = [member for member in voters if member in lost]
    is_even = len(voters) % 2 == 0
    if lost_voters and (spares or is_even or len(lost_voters) > 1) and len(voters) > 2:
        return MemberChange(ChangeKind.REMOVE, lost_voters[0])
    may_grow = len(spares) > 1 and not any(voter in silent for voter in voters)
    if spares and len(voters) < VOTERS_MAX and (is_even or may_grow):
        return MemberChange(ChangeKind.VOTER, spares[0])
    return None
