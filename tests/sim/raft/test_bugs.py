"""The simulation of Raft is worth something: it finds bugs planted in the machine.

Each bug changes one decision of `store/raft/`, as a careless edit might; its comment says which
guarantee that breaks. A bug must be found within its number of seeds, by a promise that it breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.store.raft.effects import Role
from holdfast.store.raft.leader import RaftLeader
from holdfast.store.raft.log import EntryLog
from holdfast.store.raft.machine import Raft
from holdfast.store.raft.messages import (
    Configuration,
    LogEntry,
    LogSnapshot,
    PreVote,
    Vote,
)
from holdfast.store.raft.progress import FollowerProgress, Sending, quorum_value
from holdfast.store.raft.reads import PendingReads
from tests.sim.planted import PlantedBugs
from tests.sim.raft.judge import Judge
from tests.sim.raft.sim import RaftPlan, RaftSim, draw_plan, run_seed

BUGS = PlantedBugs(run_seed, draw_plan, may_raise=True)
bug = BUGS.bug


def is_turbulent(plan: RaftPlan) -> bool:
    return len(plan.founders.voters) > 2 and (plan.coups > 0.0 or len(plan.cuts) >= 4)


def has_learners(plan: RaftPlan) -> bool:
    turbulent = plan.coups > 0.0 or len(plan.cuts) >= 4
    return len(plan.founders.voters) > 1 and plan.founders.learners != () and turbulent


def after(patch: pytest.MonkeyPatch, kind: type, name: str, act: Callable[..., None]) -> None:
    """Let `act` run after a method."""
    real = getattr(kind, name)

    def changed(self: Any, *args: Any, **options: Any) -> Any:
        result = real(self, *args, **options)
        act(self, *args)
        return result

    patch.setattr(kind, name, changed)


# Votes.


@bug("R1", 400)
def a_vote_is_counted_twice(patch: pytest.MonkeyPatch) -> None:  # RF-1
    def count(self: Raft) -> None:
        voters = self.state.configuration.voters
        votes = sum(self._votes[voter] for voter in voters if voter in self._votes)
        if votes + (len(self._votes) > 1) >= self.state.configuration.quorum:
            if self.role is Role.PRE_CANDIDATE:
                self._stand("a majority would vote for it")
            else:
                self._lead()

    patch.setattr(Raft, "_count", count)


@bug("R5", 200)
def a_member_votes_for_every_candidate(patch: pytest.MonkeyPatch) -> None:  # RF-5
    real = Raft._decide_vote

    def decide(self: Raft, message: Vote | PreVote) -> None:
        if isinstance(message, Vote):
            self.vote = self.leader = None
        real(self, message)

    patch.setattr(Raft, "_decide_vote", decide)


@bug("R5", 200)
def a_vote_is_forgotten_when_a_candidate_gives_up(patch: pytest.MonkeyPatch) -> None:  # RF-5
    def follow(self: Raft, *rest: object) -> None:
        self.vote = None

    after(patch, Raft, "_follow", follow)


@bug("R", 400)
def a_member_that_starts_again_keeps_its_number(patch: pytest.MonkeyPatch) -> None:  # rule 3
    """It has forgotten its votes and its log, and takes part as if it had not."""
    real = RaftSim.make

    def make(self: RaftSim, life: str) -> Any:
        name, _, number = life.partition(".")
        if int(number) >= self.plan.members and name != "":
            life = f"{name}.{name[1:]}"
            self.left.discard(life)
        return real(self, life)

    patch.setattr(RaftSim, "make", make)
    patch.setattr(RaftSim, "_survives", lambda self, *args: True)
    patch.setattr(Judge, "_restored", lambda self, member, effect: None)


@bug("R3", 400)
def a_vote_for_a_log_that_lacks_entries(patch: pytest.MonkeyPatch) -> None:  # RF-5, RF-3
    patch.setattr(EntryLog, "is_current", lambda self, index, term: True)


@bug("R3", 600)
def logs_are_compared_by_their_length_alone(patch: pytest.MonkeyPatch) -> None:  # RF-5, RF-3
    patch.setattr(EntryLog, "is_current", lambda self, index, term: index >= self.last_index)


@bug("R", 2000, has_learners)
def a_learners_vote_counts(patch: pytest.MonkeyPatch) -> None:  # RF-8
    """Learners are asked for their votes, and as many votes as before elect."""
    for name in ("_ask_for_votes", "_stand", "_count"):
        patch.setattr(Raft, name, _with_learners(getattr(Raft, name)))


def _with_learners(real: Callable[..., None]) -> Callable[..., None]:
    def changed(self: Raft, *args: Any, **options: Any) -> None:
        configuration = self.state.configuration
        if not isinstance(configuration, Everybody):
            everybody = Everybody(configuration.members, configuration.learners)
            self.state.configuration = everybody
        try:
            real(self, *args, **options)
        finally:
            self.state.configuration = configuration

    return changed


class Everybody(Configuration):
    """A configuration in which learners vote, and the majority is one of voters."""

    @property
    def quorum(self) -> int:
        return (len(self.voters) - len(self.learners)) // 2 + 1


# Commitment.


@bug("R", 500, is_turbulent, first=2800)
def an_entry_of_an_older_term_is_committed_by_counting(patch: pytest.MonkeyPatch) -> None:  # RF-6
    def commit(self: RaftLeader) -> bool:
        voters, quorum = self._state.configuration.voters, self._state.configuration.quorum
        index = quorum_value((self._progress[voter].match for voter in voters), quorum)
        return self._log.commit_to(index)

    patch.setattr(RaftLeader, "_commit", commit)
    patch.setattr(RaftLeader, "begin", lambda self: self._send_to_all())


@bug("R", 100)
def one_voter_less_than_a_majority_commits(patch: pytest.MonkeyPatch) -> None:  # RF-3
    def commit(self: RaftLeader) -> bool:
        voters, quorum = self._state.configuration.voters, self._state.configuration.quorum
        matches = (self._progress[voter].match for voter in voters)
        index = quorum_value(matches, max(1, quorum - 1))
        return self._log.term(index) == self._state.term and self._log.commit_to(index)

    patch.setattr(RaftLeader, "_commit", commit)


@bug("R", 2000, has_learners)
def a_learners_log_counts(patch: pytest.MonkeyPatch) -> None:  # RF-8
    real = RaftLeader._commit

    def commit(self: RaftLeader) -> bool:
        configuration, state = self._state.configuration, self._state
        matches = [progress.match for progress in self._progress.values()]
        index = quorum_value(matches, configuration.quorum)
        if self._log.term(index) == state.term and self._log.commit_to(index):
            return True
        return real(self)

    patch.setattr(RaftLeader, "_commit", commit)


# The log.


@bug("R", 200)
def entries_are_taken_behind_a_gap(patch: pytest.MonkeyPatch) -> None:  # RF-2
    """The entry before is not compared."""
    real = EntryLog.adopt

    def adopt(self: EntryLog, index: int, term: int, entries: Any) -> int | None:
        here = self.term(index)
        return real(self, index, term if here is None else here, entries)

    patch.setattr(EntryLog, "adopt", adopt)


@bug("R", 200)
def what_contradicts_a_leader_is_kept(patch: pytest.MonkeyPatch) -> None:  # RF-2
    def adopt(self: EntryLog, index: int, term: int, entries: Any) -> int | None:
        if self.term(index) != term:
            return None
        for entry in entries:
            if entry.index > self.last_index:
                self._entries.append(entry)
        return index + len(entries)

    patch.setattr(EntryLog, "adopt", adopt)


@bug("R4", 100)
def a_follower_is_said_to_have_what_was_sent(patch: pytest.MonkeyPatch) -> None:  # RF-3
    def sent(self: FollowerProgress, last_index: int) -> None:
        self.match = max(self.match, last_index)

    after(patch, FollowerProgress, "sent", sent)
    patch.setattr(EntryLog, "commit_to", _lenient(EntryLog.commit_to))


def _lenient(real: Callable[[EntryLog, int], bool]) -> Callable[[EntryLog, int], bool]:
    return lambda self, index: real(self, min(index, self.last_index))


@bug("R4", 100)
def a_snapshot_is_one_entry_ahead(patch: pytest.MonkeyPatch) -> None:  # RF-4
    real = LogSnapshot.__init__

    def init(self: LogSnapshot, index: int, *rest: Any) -> None:
        real(self, index + 1, *rest)

    patch.setattr(LogSnapshot, "__init__", init)


@bug("R4", 200)
def a_snapshot_has_the_first_members(patch: pytest.MonkeyPatch) -> None:  # RF-4
    real = LogSnapshot.__init__

    def init(self: LogSnapshot, index: int, term: int, members: Any, data: bytes) -> None:
        real(self, index, term, Configuration(members.voters, (*members.learners, 99)), data)

    patch.setattr(LogSnapshot, "__init__", init)


# Members.


@bug("R7", 200)
def changes_of_the_members_overlap(patch: pytest.MonkeyPatch) -> None:  # RF-9
    real = RaftLeader.propose

    def propose(self: RaftLeader, entry: LogEntry) -> str | None:
        self._change_index = 0
        return real(self, entry)

    patch.setattr(RaftLeader, "propose", propose)


@bug("L1", 600)
def a_leader_that_leaves_takes_proposals(patch: pytest.MonkeyPatch) -> None:  # RF-12
    patch.setattr(RaftLeader, "_ends_with", lambda self, entry: False)


@bug("L1", 100)
def a_new_member_is_not_sent_the_log(patch: pytest.MonkeyPatch) -> None:  # RF-4
    patch.setattr(RaftLeader, "send_snapshot", lambda self, member, data: None)


# Reads.


@bug("R6", 300)
def a_leader_answers_reads_without_asking(patch: pytest.MonkeyPatch) -> None:  # RF-7
    def confirmed(self: PendingReads, leader: int, voters: Any, quorum: int) -> Any:
        sure = list(self._waiting)
        self._waiting.clear()
        return sure

    patch.setattr(PendingReads, "confirmed", confirmed)


@bug("R6", 2000, is_turbulent)
def a_read_is_confirmed_by_an_older_heartbeat(patch: pytest.MonkeyPatch) -> None:  # RF-7
    def echo(self: PendingReads, member: int, context: bytes) -> None:
        self._echoed[member] = self._number

    patch.setattr(PendingReads, "echo", echo)


@bug("R6", 600)
def a_new_leader_reads_before_it_knows_what_is_committed(
    patch: pytest.MonkeyPatch,
) -> None:  # RF-7
    def begin(self: RaftLeader, requester: int, context: bytes) -> None:
        self._reads.begin(self._log.committed, requester, context)
        self._beat()
        self._answer_reads()

    patch.setattr(RaftLeader, "begin_read", begin)


# Time.


@bug("R8", 200)
def a_leader_without_a_majority_goes_on(patch: pytest.MonkeyPatch) -> None:  # RF-10
    patch.setattr(RaftLeader, "_hears_majority", lambda self: True)


@bug("L1", 200)
def a_lost_snapshot_is_never_sent_again(patch: pytest.MonkeyPatch) -> None:  # RF-4
    def unreachable(self: RaftLeader, member: int) -> None:
        progress = self._progress.get(member)
        if progress is not None and progress.sending is Sending.REPLICATE:
            progress.probe()

    patch.setattr(RaftLeader, "unreachable", unreachable)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS.check(name, monkeypatch)
