"""What a member of a replicated store wants done, besides what a store server wants."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from holdfast.store.effects import Effect
from holdfast.store.raft.messages import Message

__all__ = ["MemberEffect", "SendToMember", "Tell"]


class SendToMember(NamedTuple):
    """Send a message to another member; it may get lost."""

    member: int
    address: str
    message: Message


class Tell(NamedTuple):
    """Tell people what has become of this member."""

    text: str


MemberEffect: TypeAlias = Effect | SendToMember | Tell
