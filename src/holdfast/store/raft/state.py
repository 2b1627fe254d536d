"""What a member knows in every role: its term, its log, the members, and what it wants done."""

from __future__ import annotations

from holdfast.store.raft.effects import NeedSnapshot, RaftEffect, SendMessage
from holdfast.store.raft.log import EntryLog
from holdfast.store.raft.messages import Configuration, Message

__all__ = ["MemberState"]

FOUNDING_INDEX = FOUNDING_TERM = 1


class MemberState:
    """The state of one member. A founder's log begins behind index 1; one that joins has none."""

    __slots__ = ("_effects", "_without_log", "applied", "configuration", "id", "log", "term")

    def __init__(self, member: int, founders: Configuration | None) -> None:
        self.id = member
        self.term = FOUNDING_TERM if founders else 0
        self.configuration = founders or Configuration()
        self.log = EntryLog(FOUNDING_INDEX, FOUNDING_TERM) if founders else EntryLog(0, 0)
        self.applied = self.log.base_index
        """Up to which index entries were given out to be applied."""
        self._effects: list[RaftEffect] = []
        self._without_log: list[int] = []

    @property
    def votes(self) -> bool:
        """Say whether this member is a voter, as far as it knows."""
        return self.id in self.configuration.voters

    def want(self, effect: RaftEffect) -> None:
        """Want something to be done."""
        self._effects.append(effect)

    def send(self, message: Message) -> None:
        """Want a message to be sent."""
        self._effects.append(SendMessage(message))

    def need_snapshot(self, member: int) -> None:
        """Want a snapshot to be sent: of the state after all else that is wanted now."""
        self._without_log.append(member)

    def take_effects(self) -> list[RaftEffect]:
        """Return what to do, in order, and forget it."""
        effects, self._effects = self._effects, []
        effects += map(NeedSnapshot, self._without_log)
        self._without_log.clear()
        return effects
