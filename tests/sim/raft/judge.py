"""The judge of simulated clusters: it sees all that members do, and says which promise is broken.

    R1  at most one member leads in a term                                          (RF-1)
    R2  entries of equal index and term have equal contents and equal predecessors,
        so that logs are equal up to them                                           (RF-2)
    R3  a leader has all that was committed in the terms before its own   (RF-3, RF-6, RF-8)
    R4  all members apply the same entries, in order, without a gap; a snapshot is
        what its entries lead to, members included                                  (RF-4)
    R5  a member votes for one candidate in a term                                  (RF-5)
    R6  the index of a read is not below what was applied anywhere when it came     (RF-7)
    R7  of the entries that a member does not know to be committed, one at most
        changes the members                                                         (RF-9)
    R8  a leader that hears of no majority steps down in time                       (RF-10)

R2 is judged by the entries that are not committed yet, and R4 by the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from holdfast.store.raft.effects import (
    Became,
    Committed,
    RaftEffect,
    ReadReady,
    Restored,
    Role,
    SendMessage,
)
from holdfast.store.raft.messages import (
    AppendReply,
    Configuration,
    HeartbeatReply,
    LogEntry,
    MemberChange,
    Message,
    Vote,
    VoteReply,
)
from holdfast.store.raft.state import FOUNDING_INDEX
from tests.sim.raft.member import Member

__all__ = ["Judge"]

Content = tuple[int, bytes, MemberChange | None]


def content(entry: LogEntry) -> Content:
    return entry.term, entry.data, entry.change


class Judge:
    """Sees every step of every member of one cluster."""

    def __init__(
        self, founders: Configuration, election_ticks: int, fail: Callable[[str], None]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.last_index = FOUNDING_INDEX
        """The last entry that any member applied."""
        self.configuration = founders
        """The members after that entry."""
        self._fail = fail
        self._election_ticks = election_ticks
        self._leaders: dict[int, int] = {}
        self._entries: dict[tuple[int, int], tuple[int, LogEntry]] = {}
        # What was applied, by index, and what it led to.
        self._chosen: dict[int, Content] = {}
        # The term in which it was committed: the leader that does is the first to apply it.
        self._chosen_in: dict[int, int] = {}
        self._texts: list[bytes] = []
        self._texts_at: dict[int, int] = {FOUNDING_INDEX: 0}
        self._configurations: dict[int, Configuration] = {FOUNDING_INDEX: founders}
        self._applied: dict[int, int] = {}
        self._grants: dict[tuple[int, int], int] = {}
        self._reads: dict[bytes, int] = {}
        self._terms: dict[int, int] = {}
        # By leader: its clock, and what it showed when each member was heard of last.
        self._clock: Counter[int] = Counter()
        self._heard: dict[int, dict[int, int]] = {}
        self._led: dict[int, Configuration] = {}

    # What happens.

    def began(self, member: Member) -> None:
        """Hear of a new member."""
        self._applied[member.number] = member.machine.state.applied

    def begin_read(self, context: bytes) -> None:
        """Hear that a read is asked for."""
        self._reads[context] = self.last_index

    def is_chosen(self, entry: LogEntry) -> bool:
        """Say whether some member has applied an entry."""
        return self._chosen.get(entry.index) == content(entry)

    def ticked(self, member: Member) -> None:
        """Hear that a member's clock has ticked."""
        clock = self._clock[member.number] = self._clock[member.number] + 1
        if member.machine.role is not Role.LEADER:
            return
        configuration = member.machine.state.configuration
        if self._led.get(member.number) != configuration:  # those that are new have time
            self._led[member.number] = configuration
            self._heard[member.number] = dict.fromkeys(configuration.members, clock)
        since = clock - 3 * self._election_ticks
        heard = [self._heard[member.number].get(voter, 0) for voter in configuration.voters]
        me = member.number in configuration.voters
        if sum(at >= since for at in heard) < configuration.quorum - me:
            self._fail(f"R8: {member} leads, but has heard of no majority for long")

    def received(self, member: Member, message: Message) -> None:
        """Hear that a message has reached a member."""
        if isinstance(message, AppendReply | HeartbeatReply):
            heard = self._heard.setdefault(member.number, {})
            heard[message.sender] = self._clock[member.number]

    def observe(self, member: Member, effects: list[RaftEffect]) -> None:
        """Judge what a member did in one step."""
        for effect in effects:
            match effect:
                case Committed(entry):
                    self._committed(member, entry)
                case Restored():
                    self._restored(member, effect)
                case SendMessage(VoteReply(to=to, term=term, reject=False)):
                    self._votes(member, term, to)
                case SendMessage(Vote(term=term)):
                    self._votes(member, term, member.number)
                case ReadReady(index, context):
                    self.counts["reads"] += 1
                    if index < self._reads[context]:
                        self._fail(f"R6: {member} reads {context!r} at {index}, which is too early")
                case Became(role=Role.LEADER, term=term):
                    self._leads(member, term)
                case _:
                    pass
        self._judge_tail(member)

    # Parts.

    def _votes(self, member: Member, term: int, candidate: int) -> None:
        if self._grants.setdefault((member.number, term), candidate) != candidate:
            self._fail(f"R5: {member} votes twice in term {term}")

    def _leads(self, member: Member, term: int) -> None:
        self.counts["leaders"] += 1
        self._led.pop(member.number, None)
        if self._leaders.setdefault(term, member.number) != member.number:
            self._fail(f"R1: {member} leads term {term}, as {self._leaders[term]} does")
        applied = member.machine.state.applied  # R4 judges what comes before
        tail = {entry.index: entry for entry in member.machine.tail()}
        for index in range(applied + 1, self.last_index + 1):
            there = index in tail and content(tail[index]) == self._chosen[index]
            if not there and self._chosen_in[index] < term:
                self._fail(f"R3: {member} leads term {term}, and lacks the entry at {index}")
                return

    def _committed(self, member: Member, entry: LogEntry) -> None:
        index = entry.index
        if index != self._applied[member.number] + 1:
            self._fail(f"R4: {member} applies {index} after {self._applied[member.number]}")
        self._applied[member.number] = index
        if index == self.last_index + 1:
            self._choose(entry, member.machine.state.term)
        if self._chosen.get(index) != content(entry):
            self._fail(f"R4: {member} applies {entry}, where others have {self._chosen.get(index)}")

    def _choose(self, entry: LogEntry, term: int) -> None:
        self.counts["entries"] += 1
        self.last_index = entry.index
        self._chosen[entry.index] = content(entry)
        self._chosen_in[entry.index] = term
        if entry.data:
            self._texts.append(entry.data)
        if entry.change is not None:
            self.counts["changes"] += 1
            self.configuration = self.configuration.after(entry.change)
        self._texts_at[entry.index] = len(self._texts)
        self._configurations[entry.index] = self.configuration

    def _restored(self, member: Member, effect: Restored) -> None:
        self.counts["snapshots"] += 1
        snapshot = effect.snapshot
        if snapshot.index <= self._applied[member.number]:
            self._fail(f"R4: {member} goes back to {snapshot.index}")
        self._applied[member.number] = snapshot.index
        expected = self._texts[: self._texts_at.get(snapshot.index, 0)]
        if member.texts != expected:
            self._fail(f"R4: the snapshot of {member} at {snapshot.index} is not what was applied")
        if snapshot.configuration != self._configurations.get(snapshot.index):
            self._fail(f"R4: the snapshot of {member} at {snapshot.index} has other members")

    def _judge_tail(self, member: Member) -> None:
        changes, before = 0, None
        for entry in member.machine.tail():
            changes += entry.change is not None
            if before is not None:
                seen = (before.term, entry)
                if self._entries.setdefault((entry.index, entry.term), seen) != seen:
                    known = self._entries[entry.index, entry.term]
                    self._fail(f"R2: {member} has {seen}, where others have {known}")
            before = entry
        if changes > 1:
            self._fail(f"R7: {member} has {changes} changes of the members under way")
