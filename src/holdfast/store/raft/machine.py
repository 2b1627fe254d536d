"""One member of a Raft cluster as a machine: it elects, replicates, commits, and says why.

Rule 1: everything that one member decides about terms, votes, entries and members is decided here.
Rule 2: this file does no I/O and reads no clock. The shell calls `tick()` at equal intervals, gives
    what arrives to `step()`, and after each call performs what `take_effects()` returns, in order.
Rule 3: nothing is on disk. A number of a member is used for one life of one process; a process that
    starts again has a new number, and begins without a log, as `Raft(number, None, …)`.

Theory. Time is a sequence of terms, each with one leader at most: a member votes once in a term,
and a majority of the voters elects. The leader appends entries to its log and sends them to the
others. An entry that a majority has is committed, if it is of the leader's own term; with it all
before it. Members vote only for one whose log has all that theirs has, so a new leader has all that
was committed. A member stands for election when it has not heard of a leader for a random time, and
only if a majority would vote for it (pre-vote). A leader that does not hear of a majority steps
down. All as in etcd/raft, with these deviations:

- A committed change of the members takes effect at once, in the call that commits it.
- A leader that is removed, or becomes a learner, steps down when that is committed (thesis, 4.2.2),
  and takes no proposals before. It must live until another member leads: hand over first.
- A snapshot is made when a member needs one: `NeedSnapshot` asks the shell for the state.
- A read is numbered by its leader, so that contexts of several members cannot be mixed up.
- Handing leadership over does not put off the check for a majority.
- A change of the members that is refused leaves no empty entry in the log.
- Of two voters, each knows what both have: that is committed, though the leader may die before it
  says so. A change of the members among it counts in the election that follows (RF-14).
- `unreachable` reports a lost snapshot, too: on a connection, one is lost with the other.

Guarantees
    RF-1  At most one member leads in a term.
    RF-2  If two logs have an entry of the same index and term, they are equal up to it.
    RF-3  What was committed is in the log of every later leader.
    RF-4  All members are given the same entries, each once, in order, without a gap; a snapshot
          stands for all entries up to its index.
    RF-5  A member votes at most once in a term, and only for a log that has all that its own has.
    RF-6  An entry of an older term is committed only together with one of the leader's own term.
    RF-7  The index of a read is not below what any member knew to be committed when the read came;
          a leader that was deposed answers none.
    RF-8  Neither the votes nor the logs of learners and of other processes count for a majority.
    RF-9  One change of the members is under way at a time, and one voter at least is left.
    RF-10 A leader that hears of no majority for `election_ticks` steps down, and a member that is
          cut off and comes back does not make a leader step down that a majority follows.
    RF-11 What is under way is bounded: UNCOMMITTED_BYTES_MAX of entries (and one more), of which
          MESSAGE_BYTES_MAX (and one more) in a message, and IN_FLIGHT_MAX messages to a member.
    RF-12 A leader that hands over accepts nothing for `election_ticks`, nor does one that leaves.
    RF-13 A message that is addressed to another member, as to an earlier life, changes nothing.
    RF-14 If one of two voters dies while it makes a third member a voter, and the other one has
          that entry, the other one is elected by the third.
"""

from __future__ import annotations

import random
from typing import assert_never

from holdfast.errors import InternalError
from holdfast.store.raft.effects import Became, Committed, RaftEffect, ReadReady, Restored, Role
from holdfast.store.raft.leader import RaftLeader
from holdfast.store.raft.messages import (
    AppendEntries,
    AppendReply,
    Configuration,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    LogEntry,
    LogSnapshot,
    MemberChange,
    Message,
    PreVote,
    PreVoteReply,
    Proposal,
    ReadIndex,
    ReadIndexReply,
    TermMessage,
    TimeoutNow,
    TransferLeader,
    Vote,
    VoteReply,
)
from holdfast.store.raft.state import MemberState

__all__ = ["ELECTION_TICKS", "HEARTBEAT_TICKS", "Raft"]

ELECTION_TICKS = 10
HEARTBEAT_TICKS = 1


class Raft:
    """The machine. `founders` are the first members, or None for one that is to be added."""

    def __init__(
        self,
        member: int,
        founders: Configuration | None,
        rng: random.Random,
        *,
        election_ticks: int = ELECTION_TICKS,
        heartbeat_ticks: int = HEARTBEAT_TICKS,
    ) -> None:
        self.state = MemberState(member, founders)
        self.role = Role.FOLLOWER
        self.vote: int | None = None
        self.leader: int | None = None
        self._leading: RaftLeader | None = None  # while this member leads
        self._votes: dict[int, bool] = {}
        # The last leader that sent entries of its own term, and up to which index it has them.
        self._source: int | None = None
        self._sourced = 0
        self._rng = rng
        self._election_ticks = election_ticks
        self._heartbeat_ticks = heartbeat_ticks
        self._elapsed = self._timeout = 0
        self._await_leader()
        self._reason = ""
        self._told: tuple[Role, int, int | None] = (self.role, self.state.term, None)

    # What the shell says.

    def tick(self) -> None:
        """Let one interval of time pass."""
        self._elapsed += 1
        if self._leading is not None:
            if not self._leading.tick():
                self._follow(self.state.term, None, "heard of no majority")
        elif self._elapsed >= self._timeout and self.state.votes:
            self._ask_for_votes("heard of no leader")
        self._settle()

    def step(self, message: Message) -> None:
        """Take a message."""
        if message.to != self.state.id:
            return  # RF-13
        match message:
            case Proposal(entries=entries):
                if self._leading is not None:
                    for entry in entries:
                        self._leading.propose(entry)
            case ReadIndex(sender=sender, context=context):
                if self._leading is not None:
                    self._leading.begin_read(sender, context)
            case _:
                if self._is_of_this_term(message):
                    self._handle(message)
        self._settle()

    def propose(self, data: bytes) -> str | None:
        """Ask for an entry; return why it is refused, or None: then it may still get lost."""
        return self._submit(LogEntry(data=data))

    def change(self, change: MemberChange) -> str | None:
        """Ask for a change of the members; return why it is refused, or None as `propose` does."""
        return self._submit(LogEntry(change=change))

    def _submit(self, entry: LogEntry) -> str | None:
        refused = None
        if self._leading is not None:
            refused = self._leading.propose(entry)
        elif self.leader is None:
            refused = "no leader is known"
        else:
            self.state.send(Proposal(self.leader, self.state.id, (entry,)))
        self._settle()
        return refused

    def read(self, context: bytes) -> str | None:
        """Ask from which index on a read may be answered; return why not, or None: it may be lost.

        `ReadReady` repeats the context.
        """
        if self._leading is not None:
            self._leading.begin_read(self.state.id, context)
        elif self.leader is None:
            return "no leader is known"
        else:
            self.state.send(ReadIndex(self.leader, self.state.id, context))
        return None

    def transfer(self, to: int) -> str | None:
        """Hand leadership over, or, as a follower, ask for it; return why not, or None."""
        if self._leading is not None:
            return self._leading.hand_over(to)
        if self.leader is None or to != self.state.id:
            return f"member {self.state.id} does not lead"
        self.state.send(TransferLeader(self.leader, to, self.state.term))
        return None

    def campaign(self) -> None:
        """Stand for election now, as if no leader had been heard of."""
        if self._leading is None and self.state.votes:
            self._ask_for_votes("told to")
        self._settle()

    def unreachable(self, member: int) -> None:
        """Hear that what was sent to a member last may be lost."""
        if self._leading is not None:
            self._leading.unreachable(member)

    def send_snapshot(self, member: int, data: bytes) -> None:
        """Send the state, in which all entries are applied that were given out."""
        if self._leading is not None:
            self._leading.send_snapshot(member, data)

    def drop_log(self, index: int) -> None:
        """Drop entries up to `index`, of those that were given out."""
        self.state.log.drop_to(min(index, self.state.applied))

    @property
    def hears_leader(self) -> bool:
        """Say whether there is a leader, heard of a short time ago."""
        return self._leading is not None or (
            self.leader is not None and self._elapsed < self._election_ticks
        )

    def match_of(self, member: int) -> int | None:
        """Return up to which index a member's log agrees, where this one leads and knows it."""
        return self._leading.match_of(member) if self._leading is not None else None

    def take_effects(self) -> list[RaftEffect]:
        """Return what to perform, in order and before anything else, and forget it."""
        return self.state.take_effects()

    # Terms.

    def _is_of_this_term(self, message: TermMessage) -> bool:
        """Bring the term up to the message's, and say whether the message is to be handled."""
        if message.term < self.state.term:
            self._answer_late(message)
            return False
        if message.term > self.state.term:
            match message:
                case Vote(transfer=False) | PreVote() if self.hears_leader:
                    return False  # RF-10
                case PreVote() | PreVoteReply(reject=False):
                    pass  # about a term that may come
                case AppendEntries() | Heartbeat() | InstallSnapshot():
                    self._follow(message.term, message.sender, "a leader of a later term")
                case _:
                    self._follow(message.term, None, "a later term has begun")
        return True

    def _answer_late(self, message: TermMessage) -> None:
        """Tell a member of an earlier term that it is late, where it could not know otherwise."""
        me, term = self.state.id, self.state.term
        match message:
            case AppendEntries() | Heartbeat():
                self.state.send(AppendReply(message.sender, me, term, 0))
            case PreVote():
                self.state.send(PreVoteReply(message.sender, me, term, reject=True))
            case _:
                pass

    def _handle(self, message: TermMessage) -> None:
        match message:
            case Vote() | PreVote():
                self._decide_vote(message)
            case VoteReply():
                if self.role is Role.CANDIDATE:
                    self._count_vote(message)
            case PreVoteReply():
                if self.role is Role.PRE_CANDIDATE:
                    self._count_vote(message)
            case AppendEntries() | Heartbeat() | InstallSnapshot():
                self._obey(message)
            case AppendReply() | HeartbeatReply():
                if self._leading is not None:
                    self._leading.hear(message)
            case TransferLeader(sender=sender):
                if self._leading is not None:
                    self._leading.hand_over(sender)
            case TimeoutNow():
                if self.role is Role.FOLLOWER and self.state.votes:
                    self._stand("the leader hands over", transfer=True)
            case ReadIndexReply(index=index, context=context):
                self.state.want(ReadReady(index, context))
            case _:
                assert_never(message)

    # Votes.

    def _decide_vote(self, message: Vote | PreVote) -> None:
        pre = isinstance(message, PreVote)
        free = self.vote is None and self.leader is None
        may = self.vote == message.sender or free or (pre and message.term > self.state.term)
        grant = may and self.state.log.is_current(message.index, message.log_term)  # RF-5
        if grant and not pre:
            self._elapsed = 0
            self.vote = message.sender
        reply = PreVoteReply if pre else VoteReply
        term = message.term if grant else self.state.term
        self.state.send(reply(message.sender, self.state.id, term, not grant))

    def _ask_for_votes(self, why: str) -> None:
        """Ask the voters whether they would vote for this member."""
        self._await_leader()
        self.role, self.leader, self._reason = Role.PRE_CANDIDATE, None, why
        state, log = self.state, self.state.log
        for voter in self._electorate().voters:
            if voter != state.id:
                term = state.term + 1
                state.send(PreVote(voter, state.id, term, log.last_index, log.last_term))
        self._count_own_vote()

    def _stand(self, why: str, *, transfer: bool = False) -> None:
        """Stand for election in the next term."""
        self._await_leader()
        self.role, self.leader, self._reason = Role.CANDIDATE, None, why
        state, log = self.state, self.state.log
        state.term += 1
        self.vote = state.id
        for voter in self._electorate().voters:
            if voter != state.id:
                last = (log.last_index, log.last_term)
                state.send(Vote(voter, state.id, state.term, *last, transfer))
        self._count_own_vote()

    def _count_own_vote(self) -> None:
        self._votes[self.state.id] = True
        self._count()

    def _count_vote(self, message: VoteReply | PreVoteReply) -> None:
        self._votes.setdefault(message.sender, not message.reject)
        self._count()

    def _count(self) -> None:
        electorate = self._electorate()
        voters, quorum = electorate.voters, electorate.quorum
        votes = [self._votes[voter] for voter in voters if voter in self._votes]  # RF-8
        if sum(votes) >= quorum:
            if self.role is Role.PRE_CANDIDATE:
                self._stand("a majority would vote for it")
            else:
                self._lead()
        elif len(votes) - sum(votes) > len(voters) - quorum:
            self._follow(self.state.term, None, "a majority voted against it")

    def _electorate(self) -> Configuration:
        """Return the configuration whose voters may elect this member."""
        configuration, shared = self.state.configuration, self._shared_change()
        after = configuration if shared is None else configuration.after(shared[1])
        return after if self.state.id in after.voters else configuration

    def _shared_change(self) -> tuple[int, MemberChange] | None:
        """Return the first change of the members that both of two voters have, and its index.

        The other one sent it while it led, and so would commit it by this one's answer. It is
        committed here when this one is elected, and no sooner: then the other one can answer no
        more reads, of which it might not know that they come after the change (RF-7).
        """
        state, log = self.state, self.state.log
        if set(state.configuration.voters) == {self._source, state.id}:
            for entry in map(log.entry, range(log.committed + 1, self._sourced + 1)):
                if entry.change is not None:
                    return entry.index, entry.change
        return None

    # Roles.

    def _await_leader(self) -> None:
        """Begin to wait for a leader, for a random time."""
        self._elapsed = 0
        self._timeout = self._election_ticks + self._rng.randrange(self._election_ticks)
        self._votes.clear()
        self._leading = None

    def _follow(self, term: int, leader: int | None, why: str) -> None:
        self._await_leader()
        if term != self.state.term:
            self.state.term = term
            self.vote = None
        self.role, self.leader, self._reason = Role.FOLLOWER, leader, why

    def _lead(self) -> None:
        self.role, self.leader = Role.LEADER, self.state.id
        self._reason = "a majority voted for it"
        if (shared := self._shared_change()) is not None:
            self.state.log.commit_to(shared[0])  # RF-14
        self._leading = RaftLeader(self.state, self._election_ticks, self._heartbeat_ticks)
        self._leading.begin()

    def _settle(self) -> None:
        """Give out what is committed, and let changes of the members take effect."""
        state = self.state
        while state.applied < state.log.committed:
            state.applied += 1
            entry = state.log.entry(state.applied)
            state.want(Committed(entry))
            if self._leading is not None:
                self._leading.applied(entry)
            if entry.change is not None:
                self._reconfigure(entry.change)
        now = (self.role, state.term, self.leader)
        if now != self._told:
            self._told = now
            state.want(Became(*now, self._reason))

    def _reconfigure(self, change: MemberChange) -> None:
        self.state.configuration = self.state.configuration.after(change)
        if self._leading is not None:
            if self.state.votes:
                self._leading.reconfigure()
            else:
                self._follow(self.state.term, None, "it is no voter any more")

    # A follower's log.

    def _obey(self, message: AppendEntries | Heartbeat | InstallSnapshot) -> None:
        """Follow the leader of this term."""
        state, leader = self.state, message.sender
        if self._leading is not None:
            raise InternalError(f"RF-1: {leader} leads term {state.term}, as {state.id} does")
        if self.role is not Role.FOLLOWER:
            self._follow(state.term, leader, "another member was elected")
        elif self.leader is None:
            self._reason = "heard of the leader"
        self._elapsed = 0
        self.leader = leader
        match message:
            case AppendEntries():
                state.send(self._take_entries(message))
            case Heartbeat(commit=commit, context=context):
                state.log.commit_to(commit)
                state.send(HeartbeatReply(leader, state.id, state.term, context))
            case InstallSnapshot(snapshot=snapshot):
                self._restore(snapshot)
                state.send(AppendReply(leader, state.id, state.term, state.log.committed))
            case _:
                assert_never(message)

    def _take_entries(self, message: AppendEntries) -> AppendReply:
        me, term, log = self.state.id, self.state.term, self.state.log
        if message.index < log.committed:
            return AppendReply(message.sender, me, term, log.committed)
        last = log.adopt(message.index, message.log_term, message.entries)
        if last is None:
            return AppendReply(message.sender, me, term, message.index, True, log.last_index)
        log.commit_to(min(message.commit, last))
        self._source, self._sourced = (message.sender if log.term(last) == term else None), last
        return AppendReply(message.sender, me, term, last)

    def _restore(self, snapshot: LogSnapshot) -> None:
        state = self.state
        if snapshot.index <= state.log.committed:
            return
        if state.log.term(snapshot.index) == snapshot.term:
            state.log.commit_to(snapshot.index)  # all of it is here already
        elif state.id in snapshot.configuration.members:
            state.log.restore(snapshot)
            self._source = None
            state.applied = snapshot.index
            state.configuration = snapshot.configuration
            state.want(Restored(snapshot))
