"""What a member wants done, and what it tells: one closed union."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from holdfast.records import dataclass
from holdfast.store.raft.messages import LogEntry, LogSnapshot, Message

__all__ = [
    "Became",
    "Committed",
    "NeedSnapshot",
    "RaftEffect",
    "ReadReady",
    "Restored",
    "Role",
    "SendMessage",
]


class Role(StrEnum):
    """What a member is in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message; it may get lost."""

    message: Message


@dataclass(frozen=True, slots=True)
class Committed:
    """Apply this entry: all members do."""

    entry: LogEntry


@dataclass(frozen=True, slots=True)
class Restored:
    """Replace all that was applied by this state."""

    snapshot: LogSnapshot


@dataclass(frozen=True, slots=True)
class ReadReady:
    """The read of this context may be answered once `index` is applied. May be told again."""

    index: int
    context: bytes


@dataclass(frozen=True, slots=True)
class NeedSnapshot:
    """Call `send_snapshot` for this member, with the state as it is when this is performed."""

    member: int


@dataclass(frozen=True, slots=True)
class Became:
    """The member's role, term or leader has changed, and why."""

    role: Role
    term: int
    leader: int | None
    reason: str


RaftEffect: TypeAlias = SendMessage | Committed | Restored | ReadReady | NeedSnapshot | Became
