"""What a leader does in its term: appends, replicates, commits, answers reads, hands over.

A `RaftLeader` is made when a member is elected and thrown away when it steps down; `machine.py`
decides both, and states the guarantees (RF) that this file keeps with it.
"""

from __future__ import annotations

from typing import assert_never

from holdfast.errors import InternalError, UsageError
from holdfast.store.raft.effects import ReadReady
from holdfast.store.raft.messages import (
    AppendEntries,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    LogEntry,
    LogSnapshot,
    ReadIndexReply,
    TimeoutNow,
)
from holdfast.store.raft.progress import FollowerProgress, Sending, quorum_value
from holdfast.store.raft.reads import PendingReads
from holdfast.store.raft.state import MemberState

__all__ = ["MESSAGE_BYTES_MAX", "UNCOMMITTED_BYTES_MAX", "RaftLeader"]

MESSAGE_BYTES_MAX = 1 << 20
UNCOMMITTED_BYTES_MAX = 64 << 20


class RaftLeader:
    """One leader in one term. `begin()` comes first."""

    def __init__(self, state: MemberState, election_ticks: int, heartbeat_ticks: int) -> None:
        self._state = state
        self._log = state.log
        self._election_ticks = election_ticks
        self._heartbeat_ticks = heartbeat_ticks
        self._elapsed = self._since_heartbeat = self._handing_over = 0  # ticks
        after_last = self._log.last_index + 1
        self._progress = {m: FollowerProgress(after_last) for m in state.configuration.members}
        self._successor: int | None = None
        # Up to this index there may be a change of the members that is not applied yet.
        self._change_index = self._log.last_index
        # True if such a change makes this member no voter. Then it takes no more proposals, so that
        # its log ends with what is committed: the others can elect one of theirs without it.
        tail = range(state.applied + 1, after_last)
        self._leaving = any(self._ends_with(self._log.entry(index)) for index in tail)
        self._uncommitted = 0  # bytes
        self._reads = PendingReads()
        self._early_reads: list[tuple[int, bytes]] = []

    def begin(self) -> None:
        """Append an empty entry: with it, all before it can be committed (RF-6)."""
        self._append(LogEntry())

    # Proposals.

    def propose(self, entry: LogEntry) -> str | None:
        """Append an entry; or return why it is refused."""
        if self._successor is not None:
            return f"leadership is being handed over to {self._successor}"  # RF-12
        if self._uncommitted and self._uncommitted + len(entry.data) > UNCOMMITTED_BYTES_MAX:
            return f"{self._uncommitted} bytes are not committed yet"  # RF-11
        if self._leaving:
            return "this leader is about to be no voter"  # RF-12
        if entry.change is not None:
            if self._change_index > self._state.applied:
                return "another change may be under way"  # RF-9
            try:
                self._leaving = self._ends_with(entry)
            except UsageError as error:
                return str(error)
            self._change_index = self._log.last_index + 1
        self._append(entry)
        return None

    def _ends_with(self, entry: LogEntry) -> bool:
        """Say whether this member will be no voter any more after an entry."""
        configuration, change = self._state.configuration, entry.change
        return change is not None and self._state.id not in configuration.after(change).voters

    def _append(self, entry: LogEntry) -> None:
        index = self._log.last_index + 1
        self._log.append(LogEntry(self._state.term, index, entry.data, entry.change))
        self._uncommitted += len(entry.data)
        self._progress[self._state.id].accepted(index)
        self._commit()
        self._send_to_all()

    def _commit(self) -> bool:
        """Commit what a majority has, if it is of this term; say whether there was something."""
        configuration = self._state.configuration
        matches = (self._progress[voter].match for voter in configuration.voters)
        index = quorum_value(matches, configuration.quorum)
        if self._log.term(index) != self._state.term or not self._log.commit_to(index):  # RF-6
            return False
        early, self._early_reads = self._early_reads, []
        for requester, context in early:
            self.begin_read(requester, context)
        return True

    def applied(self, entry: LogEntry) -> None:
        """Hear that an entry was given out."""
        self._uncommitted = max(0, self._uncommitted - len(entry.data))

    def reconfigure(self) -> None:
        """Go on with a configuration that was just committed, and in which this member votes."""
        configuration, last = self._state.configuration, self._log.last_index
        known = self._progress
        self._progress = {
            member: known[member] if member in known else FollowerProgress(last, active=True)
            for member in configuration.members
        }
        if self._successor not in configuration.voters:
            self._successor = None
        if self._commit():
            self._send_to_all()
        else:
            for member in configuration.members:
                self._send_entries(member, even_empty=False)
        self._answer_reads()

    # Time.

    def tick(self) -> bool:
        """Let time pass; False means that no majority was heard of, so that it must step down."""
        self._elapsed += 1
        self._since_heartbeat += 1
        self._handing_over += 1
        if self._handing_over >= self._election_ticks:
            self._successor = None  # RF-12
        if self._elapsed >= self._election_ticks:
            self._elapsed = 0
            if not self._hears_majority():
                return False
        if self._since_heartbeat >= self._heartbeat_ticks:
            self._since_heartbeat = 0
            self._beat()
        return True

    def _hears_majority(self) -> bool:
        voters = self._state.configuration.voters
        heard = sum(v == self._state.id or self._progress[v].active for v in voters)
        for progress in self._progress.values():
            progress.active = False
        return heard >= self._state.configuration.quorum  # RF-10

    def _beat(self) -> None:
        context, term = self._reads.heartbeat_context(), self._state.term
        for member, progress in self._progress.items():
            if member != self._state.id:
                commit = min(progress.match, self._log.committed)
                self._state.send(Heartbeat(member, self._state.id, term, commit, context))

    # Replication.

    def _send_to_all(self) -> None:
        for member in self._progress:
            self._send_entries(member)

    def _send_entries(self, member: int, *, even_empty: bool = True) -> bool:
        """Send a member what it lacks; say whether something was sent."""
        state, progress = self._state, self._progress[member]
        if member == state.id or progress.paused:
            return False
        before = self._log.term(progress.next - 1)
        entries = self._log.entries_from(progress.next, MESSAGE_BYTES_MAX)
        if before is None or entries is None:
            if progress.active:  # one that is silent would not get it
                progress.await_snapshot()
                state.need_snapshot(member)
            return False
        if not entries and not even_empty:
            return False
        index, commit = progress.next - 1, self._log.committed
        state.send(AppendEntries(member, state.id, state.term, index, before, entries, commit))
        if entries:
            progress.sent(entries[-1].index)
        return True

    def send_snapshot(self, member: int, data: bytes) -> None:
        """Send the state, in which all entries are applied that were given out."""
        state, progress = self._state, self._progress.get(member)
        if progress is None or progress.sending is not Sending.SNAPSHOT:
            return  # removed meanwhile, or given up
        term = self._log.term(state.applied)
        if term is None:
            raise InternalError(f"the entry at {state.applied}, the last applied, was dropped")
        progress.snapshot = state.applied
        snapshot = LogSnapshot(state.applied, term, state.configuration, data)
        state.send(InstallSnapshot(member, state.id, state.term, snapshot))

    def unreachable(self, member: int) -> None:
        """Hear that what was sent to a member last may be lost."""
        progress = self._progress.get(member)
        if progress is not None and progress.sending is not Sending.PROBE:
            snapshot_lost = progress.sending is Sending.SNAPSHOT
            progress.probe()
            progress.probed = snapshot_lost  # the next one waits for a sign of life

    def hear(self, message: AppendReply | HeartbeatReply) -> None:
        """Take a member's answer."""
        member = message.sender
        progress = self._progress.get(member)
        if progress is None:
            return  # removed meanwhile
        progress.active = True
        match message:
            case AppendReply(reject=True, index=index, hint=hint):
                if progress.rejected(index, hint):
                    self._send_entries(member)
            case AppendReply(index=index):
                self._accepted(member, progress, index)
            case HeartbeatReply(context=context):
                progress.probed = False
                if progress.sending is Sending.REPLICATE and progress.full:
                    progress.free_one()
                if progress.match < self._log.last_index:
                    self._send_entries(member)
                self._reads.echo(member, context)
                self._answer_reads()
            case _:
                assert_never(message)

    def _accepted(self, member: int, progress: FollowerProgress, index: int) -> None:
        was_paused = progress.paused
        if not progress.accepted(index):
            return
        match progress.sending:
            case Sending.PROBE:
                progress.replicate()
            case Sending.REPLICATE:
                progress.freed(index)
            case Sending.SNAPSHOT:
                if progress.snapshot is not None and progress.match >= progress.snapshot:
                    progress.replicate()
            case _:
                assert_never(progress.sending)
        if self._commit():
            self._send_to_all()
        elif was_paused:
            self._send_entries(member)  # it may not know yet what is committed
        while self._send_entries(member, even_empty=False):
            pass
        if member == self._successor and progress.match == self._log.last_index:
            self._state.send(TimeoutNow(member, self._state.id, self._state.term))

    def match_of(self, member: int) -> int | None:
        """Return up to which index a member's log is known to agree, or None for no member."""
        progress = self._progress.get(member)
        return progress.match if progress is not None else None

    # Leadership transfer.

    def hand_over(self, to: int) -> str | None:
        """Hand leadership over as soon as that member has the whole log; or return why not."""
        state = self._state
        if to == state.id:
            self._successor = None
            return f"member {to} leads already"
        if to not in state.configuration.voters:
            return f"member {to} is no voter"
        if to != self._successor:
            self._handing_over = 0
            self._successor = to
            if self._progress[to].match == self._log.last_index:
                state.send(TimeoutNow(to, state.id, state.term))
            else:
                self._send_entries(to)
        return None

    # Reads.

    def begin_read(self, requester: int, context: bytes) -> None:
        """Answer a read once it is sure that this member led when the read came (RF-7)."""
        if self._log.term(self._log.committed) != self._state.term:
            self._early_reads.append((requester, context))  # more may be committed than it knows
            return
        self._reads.begin(self._log.committed, requester, context)
        self._beat()
        self._answer_reads()

    def _answer_reads(self) -> None:
        state = self._state
        voters, quorum = state.configuration.voters, state.configuration.quorum
        for _, index, requester, context in self._reads.confirmed(state.id, voters, quorum):
            if requester == state.id:
                state.want(ReadReady(index, context))
            else:
                state.send(ReadIndexReply(requester, state.id, state.term, index, context))
