"""One member of a Raft cluster: terms, votes, and what a follower does."""

from __future__ import annotations

import random

import pytest

from holdfast.errors import InternalError
from holdfast.store.raft.effects import Became, Committed, ReadReady, Restored, Role
from holdfast.store.raft.machine import Raft
from holdfast.store.raft.messages import (
    AppendEntries,
    AppendReply,
    ChangeKind,
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
    TimeoutNow,
    TransferLeader,
    Vote,
    VoteReply,
)
from tests.unit.store.raft.cluster import Cluster, role_of, sent

FOUNDERS = Configuration((1, 2, 3))


def member(number: int = 1, founders: Configuration | None = FOUNDERS) -> Raft:
    return Raft(number, founders, random.Random(1))


def answers(machine: Raft, message: Message) -> list[Message]:
    machine.step(message)
    return sent(machine)


def follower(*terms: int) -> Raft:
    """Make a member that follows 2 in term 5, with entries of these terms behind index 1."""
    machine = member()
    entries = tuple(LogEntry(term, index) for index, term in enumerate(terms, 2))
    machine.step(AppendEntries(1, 2, 5, 1, 1, entries, 1))
    machine.take_effects()
    return machine


# Elections.


def test_a_member_that_hears_of_no_leader_asks_and_then_stands() -> None:
    """RF-1, RF-10."""
    machine = member()
    ticks = 0
    while not (messages := sent(machine)):
        machine.tick()
        ticks += 1
    assert 10 <= ticks < 20
    assert messages == [PreVote(2, 1, 2, 1, 1), PreVote(3, 1, 2, 1, 1)]
    assert (machine.role, machine.state.term, machine.vote) == (Role.PRE_CANDIDATE, 1, None)
    assert answers(machine, PreVoteReply(1, 2, 2, reject=False)) == [
        Vote(2, 1, 2, 1, 1),
        Vote(3, 1, 2, 1, 1),
    ]
    assert (machine.role, machine.state.term, machine.vote) == (Role.CANDIDATE, 2, 1)
    assert answers(machine, VoteReply(1, 3, 2, reject=False)) == [
        AppendEntries(2, 1, 2, 1, 1, (LogEntry(2, 2),), 1),
        AppendEntries(3, 1, 2, 1, 1, (LogEntry(2, 2),), 1),
    ]
    assert (machine.role, machine.leader) == (Role.LEADER, 1)


def test_a_member_says_what_it_became_and_why() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    assert cluster.nodes[1].became == [
        Became(Role.PRE_CANDIDATE, 1, None, "told to"),
        Became(Role.CANDIDATE, 2, None, "a majority would vote for it"),
        Became(Role.LEADER, 2, 1, "a majority voted for it"),
    ]
    assert cluster.nodes[2].became == [
        Became(Role.FOLLOWER, 2, None, "a later term has begun"),
        Became(Role.FOLLOWER, 2, 1, "heard of the leader"),
    ]


def test_a_majority_against_it_ends_a_candidacy() -> None:
    machine = member()
    machine.campaign()
    machine.step(PreVoteReply(1, 2, 1, reject=True))
    assert role_of(machine) is Role.PRE_CANDIDATE
    machine.step(PreVoteReply(1, 2, 1, reject=True))  # counted once
    assert role_of(machine) is Role.PRE_CANDIDATE
    machine.step(PreVoteReply(1, 3, 1, reject=True))
    assert role_of(machine) is Role.FOLLOWER


def test_votes_count_once_and_those_of_learners_and_strangers_never() -> None:
    """RF-1, RF-8."""
    machine = member(founders=Configuration((1, 2, 3, 4, 5), (6,)))
    machine.campaign()
    for voter in (2, 2, 6, 9):
        machine.step(PreVoteReply(1, voter, 2, reject=False))
    assert role_of(machine) is Role.PRE_CANDIDATE
    machine.step(PreVoteReply(1, 3, 2, reject=False))
    assert role_of(machine) is Role.CANDIDATE
    for voter in (2, 2, 6, 9):
        machine.step(VoteReply(1, voter, 2, reject=False))
    assert role_of(machine) is Role.CANDIDATE


def test_answers_to_an_earlier_candidacy_are_ignored() -> None:
    machine = member()
    machine.step(VoteReply(1, 2, 1, reject=False))
    machine.step(PreVoteReply(1, 2, 1, reject=False))
    assert role_of(machine) is Role.FOLLOWER
    machine.campaign()
    machine.step(VoteReply(1, 2, 1, reject=False))
    assert role_of(machine) is Role.PRE_CANDIDATE


def test_another_member_that_was_elected_is_followed() -> None:
    for message in (
        Heartbeat(1, 2, 1, 1),
        AppendEntries(1, 2, 1, 1, 1, (), 1),
        InstallSnapshot(1, 2, 1, LogSnapshot(1, 1, FOUNDERS, b"")),
    ):
        machine = member()
        machine.campaign()
        machine.step(message)
        assert (machine.role, machine.leader) == (Role.FOLLOWER, 2)


def test_learners_and_strangers_do_not_stand() -> None:
    """RF-8."""
    for machine in (member(4, Configuration((1,), (4,))), member(9, None)):
        for _ in range(50):
            machine.tick()
        machine.campaign()
        machine.step(TimeoutNow(machine.state.id, 1, machine.state.term))
        assert role_of(machine) is Role.FOLLOWER
        assert sent(machine) == []


def test_a_leader_and_a_candidate_stand_no_second_time_when_told_to() -> None:
    cluster = Cluster(1, 2)
    leader = cluster.elect(1)
    leader.campaign()
    leader.step(TimeoutNow(1, 2, 2))
    assert leader.state.term == 2
    machine = member()
    machine.campaign()
    machine.step(TimeoutNow(1, 2, 1))
    assert role_of(machine) is Role.PRE_CANDIDATE


# Votes.


def test_one_vote_in_a_term() -> None:
    """RF-5."""
    machine = member()
    assert answers(machine, Vote(1, 2, 2, 1, 1)) == [VoteReply(2, 1, 2, reject=False)]
    assert answers(machine, Vote(1, 3, 2, 1, 1)) == [VoteReply(3, 1, 2, reject=True)]
    assert answers(machine, Vote(1, 2, 2, 1, 1)) == [VoteReply(2, 1, 2, reject=False)]
    assert answers(machine, Vote(1, 3, 3, 1, 1)) == [VoteReply(3, 1, 3, reject=False)]


def test_no_vote_against_a_leader_of_the_term() -> None:
    """RF-5."""
    machine = follower()
    assert answers(machine, Vote(1, 3, 5, 9, 5)) == [VoteReply(3, 1, 5, reject=True)]


def test_a_vote_only_for_a_log_that_has_all() -> None:
    """RF-5."""
    machine = follower(2, 3)
    for _ in range(10):
        machine.tick()
    machine.take_effects()
    for index, term, reject in ((2, 3, True), (9, 2, True), (3, 3, False)):
        reply = PreVoteReply(3, 1, 5 if reject else 6, reject)
        assert answers(machine, PreVote(1, 3, 6, index, term)) == [reply]
    assert answers(machine, Vote(1, 3, 6, 2, 3)) == [VoteReply(3, 1, 6, reject=True)]
    assert answers(machine, Vote(1, 3, 7, 3, 3)) == [VoteReply(3, 1, 7, reject=False)]


def test_a_pre_vote_changes_nothing() -> None:
    """RF-10."""
    machine = member()
    assert answers(machine, PreVote(1, 2, 9, 1, 1)) == [PreVoteReply(2, 1, 9, reject=False)]
    assert (machine.state.term, machine.vote) == (1, None)


def test_a_member_that_hears_of_a_leader_listens_to_no_candidate() -> None:
    """RF-10."""
    machine = follower()
    for message in (PreVote(1, 3, 9, 9, 9), Vote(1, 3, 9, 9, 9)):
        assert answers(machine, message) == []
    assert machine.state.term == 5
    # Unless the leader itself has told it to stand.
    assert answers(machine, Vote(1, 3, 6, 9, 9, transfer=True)) == [VoteReply(3, 1, 6, False)]


def test_a_leader_listens_to_no_candidate() -> None:
    """RF-10."""
    leader = Cluster(1, 2, 3).elect(1)
    leader.take_effects()
    assert answers(leader, Vote(1, 3, 9, 9, 9)) == []
    assert role_of(leader) is Role.LEADER


def test_a_member_that_was_cut_off_does_not_depose_a_leader() -> None:
    """RF-10."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.cut(3)
    cluster.tick(100)
    assert role_of(cluster[3]) is Role.PRE_CANDIDATE
    cluster.cut()
    cluster.tick(5)
    assert (leader.role, leader.state.term) == (Role.LEADER, 2)
    assert cluster[3].leader == 1


# Terms.


def test_a_member_of_an_earlier_term_is_told_so() -> None:
    machine = follower()
    late: list[tuple[Message, list[Message]]] = [
        (Heartbeat(1, 3, 4, 1), [AppendReply(3, 1, 5, 0)]),
        (AppendEntries(1, 3, 4, 1, 1, (), 1), [AppendReply(3, 1, 5, 0)]),
        (PreVote(1, 3, 4, 9, 9), [PreVoteReply(3, 1, 5, reject=True)]),
        (Vote(1, 3, 4, 9, 9), []),
        (VoteReply(1, 3, 4, reject=False), []),
    ]
    for message, reply in late:
        assert answers(machine, message) == reply
    assert machine.leader == 2


def test_a_leader_of_a_later_term_is_followed() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    leader.step(Heartbeat(1, 3, 9, 1))
    assert (leader.role, leader.leader, leader.state.term) == (Role.FOLLOWER, 3, 9)


def test_two_leaders_in_a_term_are_a_bug() -> None:
    """RF-1."""
    leader = Cluster(1, 2, 3).elect(1)
    with pytest.raises(InternalError, match="RF-1: 3 leads term 2, as 1 does"):
        leader.step(Heartbeat(1, 3, 2, 1))


def test_a_message_to_an_earlier_life_changes_nothing() -> None:
    """RF-13."""
    machine = member(7, None)
    machine.step(Heartbeat(1, 2, 9, 0))
    assert machine.state.term == 0
    assert machine.take_effects() == []


# A follower's log.


def test_entries_are_taken_and_given_out_once_they_are_committed() -> None:
    """RF-4."""
    machine = member()
    entries = (LogEntry(2, 2, b"x"), LogEntry(2, 3, b"y"))
    assert answers(machine, AppendEntries(1, 2, 2, 1, 1, entries, 2)) == [AppendReply(2, 1, 2, 3)]
    machine = member()
    machine.step(AppendEntries(1, 2, 2, 1, 1, entries, 2))
    assert Committed(entries[0]) in machine.take_effects()
    machine.step(AppendEntries(1, 2, 2, 1, 1, entries, 2))
    machine.step(Heartbeat(1, 2, 2, 3, b"c"))
    assert [e for e in machine.take_effects() if isinstance(e, Committed)] == [
        Committed(entries[1])
    ]


def test_a_follower_tells_where_its_log_ends_if_it_lacks_an_entry() -> None:
    """RF-2."""
    machine = follower(2, 3)
    late = AppendEntries(1, 2, 5, 9, 5, (), 1)
    assert answers(machine, late) == [AppendReply(2, 1, 5, 9, True, 3)]


def test_a_follower_that_knows_more_says_so() -> None:
    machine = follower(2, 3)
    machine.step(Heartbeat(1, 2, 5, 3))
    machine.take_effects()
    assert answers(machine, AppendEntries(1, 2, 5, 1, 1, (), 1)) == [AppendReply(2, 1, 5, 3)]


def test_no_more_is_committed_than_the_leader_and_the_follower_share() -> None:
    machine = member()
    machine.step(AppendEntries(1, 2, 2, 1, 1, (LogEntry(2, 2),), 9))
    assert machine.state.log.committed == 2


def test_a_heartbeat_is_answered_with_what_it_carried() -> None:
    assert answers(follower(), Heartbeat(1, 2, 5, 1, b"7")) == [HeartbeatReply(2, 1, 5, b"7")]


def test_a_snapshot_replaces_a_log_that_lacks_its_entry() -> None:
    """RF-4."""
    machine = follower(2)
    snapshot = LogSnapshot(9, 4, Configuration((1, 2), (8,)), b"state")
    machine.step(InstallSnapshot(1, 2, 5, snapshot))
    assert Restored(snapshot) in machine.take_effects()
    assert machine.state.configuration == snapshot.configuration
    assert (machine.state.applied, machine.state.log.last_index) == (9, 9)
    assert answers(machine, InstallSnapshot(1, 2, 5, snapshot)) == [AppendReply(2, 1, 5, 9)]


def test_a_snapshot_of_what_is_there_commits_it() -> None:
    """RF-4."""
    machine = follower(2, 3, 3)
    machine.step(InstallSnapshot(1, 2, 5, LogSnapshot(3, 3, FOUNDERS, b"")))
    assert [e for e in machine.take_effects() if isinstance(e, Restored)] == []
    assert (machine.state.applied, machine.state.log.last_index) == (3, 4)


def test_a_snapshot_for_others_is_not_taken() -> None:
    machine = follower(2)
    snapshot = LogSnapshot(9, 4, Configuration((2, 3)), b"")
    assert answers(machine, InstallSnapshot(1, 2, 5, snapshot)) == [AppendReply(2, 1, 5, 1)]
    assert machine.state.log.last_index == 2


def test_only_what_was_given_out_is_dropped() -> None:
    machine = follower(2, 3)
    machine.drop_log(3)
    assert machine.state.log.base_index == 1


def test_a_change_of_the_members_takes_effect_when_it_is_committed() -> None:
    """RF-9."""
    machine = member()
    change = LogEntry(2, 2, change=MemberChange(ChangeKind.LEARNER, 4))
    machine.step(AppendEntries(1, 2, 2, 1, 1, (change,), 1))
    assert machine.state.configuration == FOUNDERS
    machine.step(Heartbeat(1, 2, 2, 2))
    assert machine.state.configuration == Configuration((1, 2, 3), (4,))


# Two voters.


def one_of_two(kind: ChangeKind, number: int, term: int = 5) -> Raft:
    """Make one of two voters; 2, the other one, has sent a change of this term in its term 5."""
    machine = member(founders=Configuration((1, 2), (3,)))
    change = LogEntry(term, 3, change=MemberChange(kind, number))
    machine.step(AppendEntries(1, 2, 5, 1, 1, (LogEntry(term, 2), change), 1))
    return machine


def asked(machine: Raft) -> list[int]:
    """Let a machine stand; return the members that it asks for their votes."""
    machine.take_effects()
    machine.campaign()
    return [message.to for message in sent(machine) if isinstance(message, PreVote)]


def test_the_member_that_two_voters_made_a_voter_elects_one_of_them() -> None:
    """RF-14."""
    machine = one_of_two(ChangeKind.VOTER, 3)
    assert asked(machine) == [2, 3]
    assert machine.state.configuration.voters == (1, 2)
    machine.step(PreVoteReply(1, 3, 6, reject=False))
    machine.step(VoteReply(1, 3, 6, reject=False))
    assert role_of(machine) is Role.LEADER
    assert machine.state.configuration == FOUNDERS
    machine.step(AppendReply(1, 3, 6, 4))
    assert machine.state.log.committed == 4


def test_one_of_two_voters_goes_on_alone_when_the_other_one_has_left() -> None:
    """RF-14."""
    machine = one_of_two(ChangeKind.REMOVE, 2)
    assert asked(machine) == []
    assert role_of(machine) is Role.LEADER
    assert machine.state.configuration == Configuration((1,), (3,))


def test_one_of_two_voters_that_is_to_leave_needs_the_other_one() -> None:
    machine = one_of_two(ChangeKind.REMOVE, 1)
    assert asked(machine) == [2]
    assert role_of(machine) is Role.PRE_CANDIDATE


def test_without_a_change_two_voters_need_each_other() -> None:
    machine = member(founders=Configuration((1, 2), (3,)))
    machine.step(AppendEntries(1, 2, 5, 1, 1, (LogEntry(5, 2, b"x"),), 1))
    assert asked(machine) == [2]


def test_a_change_that_only_the_leader_of_an_older_term_sent_may_be_lost() -> None:
    """RF-6: the leader of term 5 could not commit an entry of term 4 by counting."""
    assert asked(one_of_two(ChangeKind.VOTER, 3, term=4)) == [2]


def test_two_of_three_voters_do_not_tell_each_other_what_is_committed() -> None:
    machine = member(founders=Configuration((1, 2, 3), (4,)))
    change = LogEntry(5, 2, change=MemberChange(ChangeKind.VOTER, 4))
    machine.step(AppendEntries(1, 2, 5, 1, 1, (change,), 1))
    assert asked(machine) == [2, 3]


def test_what_was_shared_before_a_snapshot_is_forgotten() -> None:
    machine = one_of_two(ChangeKind.VOTER, 3)
    snapshot = LogSnapshot(2, 6, Configuration((1, 2), (3,)), b"")
    machine.step(InstallSnapshot(1, 2, 6, snapshot))
    assert asked(machine) == [2]


# What is asked of a member that does not lead.


def test_a_follower_passes_on_what_it_is_asked() -> None:
    machine = follower()
    assert machine.propose(b"x") is None
    assert machine.change(MemberChange(ChangeKind.REMOVE, 3)) is None
    assert machine.read(b"r") is None
    assert machine.transfer(1) is None
    assert sent(machine) == [
        Proposal(2, 1, (LogEntry(data=b"x"),)),
        Proposal(2, 1, (LogEntry(change=MemberChange(ChangeKind.REMOVE, 3)),)),
        ReadIndex(2, 1, b"r"),
        TransferLeader(2, 1, 5),
    ]
    assert machine.transfer(3) == "member 1 does not lead"


def test_without_a_leader_all_is_refused() -> None:
    machine = member()
    assert machine.propose(b"x") == "no leader is known"
    assert machine.read(b"r") == "no leader is known"
    assert machine.transfer(1) == "member 1 does not lead"
    assert machine.take_effects() == []


def test_what_was_passed_on_to_a_member_that_does_not_lead_is_lost() -> None:
    machine = follower()
    lost: list[Message] = [
        Proposal(1, 3, (LogEntry(data=b"x"),)),
        ReadIndex(1, 3, b"r"),
        TransferLeader(1, 3, 5),
        AppendReply(1, 3, 5, 1),
        HeartbeatReply(1, 3, 5),
    ]
    for message in lost:
        assert answers(machine, message) == []


def test_what_was_passed_on_reaches_all() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster[2].propose(b"x")
    cluster.deliver()
    assert cluster.texts() == [[b"x"]] * 3
    cluster[3].transfer(3)
    cluster.deliver()
    assert role_of(cluster[3]) is Role.LEADER


def test_the_answer_to_a_read_is_given_out() -> None:
    machine = follower()
    machine.step(ReadIndexReply(1, 2, 5, 4, b"r"))
    assert machine.take_effects() == [ReadReady(4, b"r")]
