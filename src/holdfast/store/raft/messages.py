"""What a log holds, its members, and what they say to each other: plain data.

A member is named by a number that no other life of any process ever has: nothing is on disk, so a
process that starts again is a new member. Each message stands for one of etcd/raft's:

    PreVote, PreVoteReply            MsgPreVote, MsgPreVoteResp
    Vote, VoteReply                  MsgVote, MsgVoteResp
    AppendEntries, AppendReply       MsgApp, MsgAppResp
    Heartbeat, HeartbeatReply        MsgHeartbeat, MsgHeartbeatResp
    InstallSnapshot                  MsgSnap; MsgAppResp answers it
    TransferLeader, TimeoutNow       MsgTransferLeader, MsgTimeoutNow
    Proposal                         MsgProp
    ReadIndex, ReadIndexReply        MsgReadIndex, MsgReadIndexResp
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias, assert_never

from holdfast.errors import UsageError
from holdfast.records import dataclass

__all__ = [
    "AppendEntries",
    "AppendReply",
    "ChangeKind",
    "Configuration",
    "Heartbeat",
    "HeartbeatReply",
    "InstallSnapshot",
    "LogEntry",
    "LogSnapshot",
    "MemberChange",
    "Message",
    "PreVote",
    "PreVoteReply",
    "Proposal",
    "ReadIndex",
    "ReadIndexReply",
    "TermMessage",
    "TimeoutNow",
    "TransferLeader",
    "Vote",
    "VoteReply",
]


# The log and its keepers.


class ChangeKind(StrEnum):
    """What a change of the configuration does to one member."""

    VOTER = "voter"
    """The member votes from now on; as a rule it was a learner before."""
    LEARNER = "learner"
    """The member gets the log, and its word counts for nothing."""
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One member becomes a voter or a learner, or leaves."""

    kind: ChangeKind
    member: int

    def __str__(self) -> str:
        return f"{self.kind} {self.member}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members: voters decide, learners only listen. Both are in increasing order."""

    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        """All members, in increasing order."""
        return tuple(sorted((*self.voters, *self.learners)))

    @property
    def quorum(self) -> int:
        """How many voters are a majority."""
        return len(self.voters) // 2 + 1

    def after(self, change: MemberChange) -> Configuration:
        """Return the configuration after a change; UsageError if no voter would be left."""
        voters = set(self.voters) - {change.member}
        learners = set(self.learners) - {change.member}
        match change.kind:
            case ChangeKind.VOTER:
                voters.add(change.member)
            case ChangeKind.LEARNER:
                learners.add(change.member)
            case ChangeKind.REMOVE:
                pass
            case _:
                assert_never(change.kind)
        if not voters:
            raise UsageError(f"change {str(change)!r}: would leave no voter")
        return Configuration(tuple(sorted(voters)), tuple(sorted(learners)))


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry: an operation of the application, a change of the members, or nothing.

    A new leader begins with an empty entry. A proposal has term and index 0.
    """

    term: int = 0
    index: int = 0
    data: bytes = b""
    change: MemberChange | None = None


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """All that the log up to `index` has led to: `data` is the application's state."""

    index: int
    term: int
    configuration: Configuration
    data: bytes


# Messages. `term` is the sender's, except in a request or a grant of a pre-vote: there it is the
# term that the candidate would take.


@dataclass(frozen=True, slots=True)
class PreVote:
    """Would you vote for me? `index` and `log_term` are those of my last entry."""

    to: int
    sender: int
    term: int
    index: int
    log_term: int


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    """The answer to a PreVote."""

    to: int
    sender: int
    term: int
    reject: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """Vote for me. With `transfer` the leader has told me to stand, so it does not protest."""

    to: int
    sender: int
    term: int
    index: int
    log_term: int
    transfer: bool = False


@dataclass(frozen=True, slots=True)
class VoteReply:
    """The answer to a Vote."""

    to: int
    sender: int
    term: int
    reject: bool


@dataclass(frozen=True, slots=True)
class AppendEntries:
    """These entries follow the one at `index`, of `log_term`; all up to `commit` are committed."""

    to: int
    sender: int
    term: int
    index: int
    log_term: int
    entries: tuple[LogEntry, ...]
    commit: int


@dataclass(frozen=True, slots=True)
class AppendReply:
    """My log is yours up to `index`; or, with `reject`, I lack `index`: my last one is `hint`."""

    to: int
    sender: int
    term: int
    index: int
    reject: bool = False
    hint: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """I lead; all up to `commit`, which you have, is committed. `context` comes back."""

    to: int
    sender: int
    term: int
    commit: int
    context: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """I hear you."""

    to: int
    sender: int
    term: int
    context: bytes = b""


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Begin with this, because the entries before it are dropped here."""

    to: int
    sender: int
    term: int
    snapshot: LogSnapshot


@dataclass(frozen=True, slots=True)
class TransferLeader:
    """Hand leadership over to me, the sender."""

    to: int
    sender: int
    term: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Stand for election at once: the leader hands over."""

    to: int
    sender: int
    term: int


@dataclass(frozen=True, slots=True)
class ReadIndexReply:
    """What you asked with `context` can be read as soon as `index` is applied."""

    to: int
    sender: int
    term: int
    index: int
    context: bytes


@dataclass(frozen=True, slots=True)
class Proposal:
    """A follower passes these on to the leader."""

    to: int
    sender: int
    entries: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """A follower asks from which index on it may answer a read."""

    to: int
    sender: int
    context: bytes


TermMessage: TypeAlias = (
    PreVote
    | PreVoteReply
    | Vote
    | VoteReply
    | AppendEntries
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | InstallSnapshot
    | TransferLeader
    | TimeoutNow
    | ReadIndexReply
)
"""Messages that belong to a term."""

Message: TypeAlias = TermMessage | Proposal | ReadIndex
