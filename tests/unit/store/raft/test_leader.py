"""What a leader does in its term, seen from the members that it leads."""

from __future__ import annotations

import pytest

from holdfast.errors import InternalError
from holdfast.store.raft import leader as leader_module
from holdfast.store.raft.effects import NeedSnapshot, Role
from holdfast.store.raft.leader import RaftLeader
from holdfast.store.raft.messages import (
    AppendEntries,
    AppendReply,
    ChangeKind,
    Configuration,
    HeartbeatReply,
    InstallSnapshot,
    LogEntry,
    MemberChange,
    Message,
    TimeoutNow,
)
from holdfast.store.raft.progress import IN_FLIGHT_MAX
from holdfast.store.raft.state import MemberState
from tests.unit.store.raft.cluster import Cluster, role_of, sent

VOTER, LEARNER, REMOVE = ChangeKind


def appended(messages: list[Message]) -> list[tuple[int, int, int]]:
    """Return (member, index before, entries) of the AppendEntries among messages."""
    return [(m.to, m.index, len(m.entries)) for m in messages if isinstance(m, AppendEntries)]


# Proposals and commitment.


def test_an_entry_is_committed_when_a_majority_has_it() -> None:
    cluster = Cluster(1, 2, 3, 4, 5)
    leader = cluster.elect(1)
    cluster.cut(4, 5)
    assert leader.propose(b"x") is None
    cluster.deliver()
    assert cluster.texts() == [[b"x"], [b"x"], [b"x"], [], []]
    cluster.cut(3, 4, 5)
    leader.propose(b"y")
    cluster.deliver()
    assert cluster.texts()[0] == [b"x"]
    cluster.cut()
    cluster.tick()
    assert cluster.texts() == [[b"x", b"y"]] * 5


def test_an_entry_of_an_older_term_is_committed_with_one_of_this_term() -> None:
    """RF-6: the figure 8 of the paper."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.cut(2, 3)
    cluster[1].propose(b"old")
    cluster.deliver()
    cluster.cut(1)
    cluster.tick(30, 2, 3)
    cluster.cut()
    state = cluster[1].state
    before = state.log.committed
    leader = RaftLeader(MemberState(1, cluster.founders), 10, 1)
    leader._log.append(LogEntry(1, 2, b"old"))
    leader._state.term = 3
    leader.begin()
    leader.hear(AppendReply(1, 2, 3, 2))
    assert leader._log.committed == before - 1 == 1
    leader.hear(AppendReply(1, 2, 3, 3))
    assert leader._log.committed == 3


def test_alone_everything_is_committed_at_once_and_no_message_is_sent() -> None:
    cluster = Cluster(1)
    leader = cluster.elect(1)
    leader.propose(b"x")
    assert cluster.nodes[1].perform(leader.take_effects()) == []
    assert cluster.nodes[1].texts == [b"x"]


def test_what_is_not_committed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """RF-11."""
    monkeypatch.setattr(leader_module, "UNCOMMITTED_BYTES_MAX", 10)
    cluster = Cluster(1, 2)
    leader = cluster.elect(1)
    cluster.cut(2)
    assert leader.propose(b"x" * 99) is None  # one is taken, however large
    assert leader.propose(b"y") == "99 bytes are not committed yet"
    cluster.cut()
    cluster.tick()
    assert leader.propose(b"y" * 10) is None
    assert leader.propose(b"z") == "10 bytes are not committed yet"


def test_a_message_is_bounded_and_the_rest_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """RF-11."""
    monkeypatch.setattr(leader_module, "MESSAGE_BYTES_MAX", 2)
    cluster = Cluster(1, 2)
    leader = cluster.elect(1)
    cluster.cut(2)
    for _ in range(5):
        leader.propose(b"x")
    cluster.deliver()
    leader.unreachable(2)
    cluster.cut()
    leader.step(HeartbeatReply(1, 2, 2))
    assert appended(cluster.deliver()) == [
        (2, 2, 2),
        (2, 4, 2),
        (2, 6, 1),
        (2, 7, 0),  # what is committed
        (2, 7, 0),
    ]
    assert cluster.nodes[2].texts == [b"x"] * 5


def test_messages_under_way_are_bounded_and_a_sign_of_life_lets_one_more_go() -> None:
    """RF-11."""
    cluster = Cluster(1, 2)
    leader = cluster.elect(1)
    for _ in range(IN_FLIGHT_MAX + 5):
        leader.propose(b"x")
    assert len(appended(sent(leader))) == IN_FLIGHT_MAX
    leader.step(HeartbeatReply(1, 2, 2))
    assert appended(sent(leader)) == [(2, IN_FLIGHT_MAX + 2, 5)]


# Replication.


def test_a_log_that_differs_is_found_by_probing_and_put_right() -> None:
    """RF-2."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.cut(1)
    for text in (b"lost", b"too"):
        cluster[1].propose(text)
    cluster.collect()
    cluster.tick(30, 2, 3)
    leading = 2 if cluster[2].role is Role.LEADER else 3
    for text in (b"a", b"b", b"c"):
        cluster[leading].propose(text)
    cluster.deliver()
    cluster.cut()
    cluster.tick()
    assert cluster.texts() == [[b"a", b"b", b"c"]] * 3


def test_answers_of_members_that_are_gone_are_ignored() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    leader.change(MemberChange(REMOVE, 3))
    cluster.deliver()
    leader.step(AppendReply(1, 3, 2, 4))
    leader.step(AppendReply(1, 2, 2, 1))  # old news
    assert sent(leader) == []
    assert leader.match_of(3) is None
    assert leader.match_of(2) == 3
    assert cluster[2].match_of(1) is None


def test_a_repeated_rejection_changes_nothing() -> None:
    cluster = Cluster(1, 2)
    leader = cluster.elect(1)
    leader.step(AppendReply(1, 2, 2, 1, True, 1))
    assert sent(leader) == []


# Snapshots.


def learner_without_log() -> Cluster:
    """A cluster of one, and a learner that cannot be reached yet."""
    cluster = Cluster(1)
    leader = cluster.elect(1)
    leader.propose(b"x")
    leader.propose(b"y")
    cluster.deliver()
    leader.drop_log(99)
    cluster.add(2)
    cluster.cut(2)
    leader.change(MemberChange(LEARNER, 2))
    cluster.deliver()
    return cluster


def test_a_member_without_a_log_gets_a_snapshot() -> None:
    """RF-4."""
    cluster = learner_without_log()
    leader = cluster[1]
    cluster.cut()
    cluster.tick()
    (snapshot,) = cluster.nodes[2].restored
    assert (snapshot.index, snapshot.configuration) == (5, Configuration((1,), (2,)))
    assert cluster[2].state.configuration == snapshot.configuration
    leader.propose(b"z")
    cluster.deliver()
    assert cluster.texts() == [[b"x", b"y", b"z"]] * 2


def test_a_lost_snapshot_is_sent_again_when_the_member_is_heard_of() -> None:
    cluster = learner_without_log()
    leader = cluster[1]
    cluster.cut()
    cluster.lost = lambda message: isinstance(message, InstallSnapshot)
    cluster.tick(3)
    cluster.cut()
    cluster.tick(3)
    assert cluster.nodes[2].restored == []
    leader.unreachable(2)
    leader.propose(b"z")
    assert cluster.collect() == []  # it waits
    cluster.tick(2)
    assert cluster.nodes[2].texts == [b"x", b"y", b"z"]


def test_a_snapshot_that_does_not_reach_far_enough_is_followed_by_nothing() -> None:
    cluster = learner_without_log()
    leader = cluster[1]
    cluster.lost = lambda message: isinstance(message, InstallSnapshot)
    cluster.tick()
    leader.step(AppendReply(1, 2, 2, 3))
    leader.propose(b"z")
    assert sent(leader) == []
    leader.step(AppendReply(1, 2, 2, 5))
    assert appended(sent(leader)) == [(2, 5, 1)]


def test_a_silent_member_is_sent_no_snapshot() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.cut(3)
    for _ in range(3):
        leader.propose(b"x")
        cluster.deliver()
    cluster.tick(25, 1, 2)
    leader.unreachable(3)
    leader.drop_log(99)
    leader.propose(b"y")
    assert not any(isinstance(e, NeedSnapshot) for e in leader.take_effects())
    leader.step(HeartbeatReply(1, 3, 2))
    assert NeedSnapshot(3) in leader.take_effects()


def test_a_snapshot_for_a_member_that_needs_none_is_not_sent() -> None:
    cluster = Cluster(1, 2)
    leader = cluster.elect(1)
    leader.send_snapshot(2, b"")
    leader.send_snapshot(9, b"")
    cluster[2].send_snapshot(1, b"")
    assert sent(leader) == sent(cluster[2]) == []


def test_a_snapshot_ends_with_the_entry_that_was_applied_last() -> None:
    cluster = learner_without_log()
    leader = cluster[1]
    leader.step(AppendReply(1, 2, 2, 4, True, 0))
    leader.state.applied = 2
    with pytest.raises(InternalError, match="the entry at 2, the last applied, was dropped"):
        leader.send_snapshot(2, b"")


def test_what_is_unreachable_is_probed() -> None:
    cluster = Cluster(1, 2)
    leader = cluster.elect(1)
    cluster.cut(2)
    leader.propose(b"x")
    leader.propose(b"y")
    cluster.deliver()
    leader.unreachable(2)
    leader.unreachable(2)
    leader.unreachable(9)
    cluster[2].unreachable(1)
    cluster.cut()
    cluster.tick()
    assert cluster.texts() == [[b"x", b"y"]] * 2


# Members.


def test_one_change_of_the_members_at_a_time() -> None:
    """RF-9."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.add(4)
    assert leader.change(MemberChange(LEARNER, 4)) is None
    assert leader.change(MemberChange(VOTER, 4)) == "another change may be under way"
    cluster.deliver()
    assert leader.change(MemberChange(VOTER, 4)) is None
    cluster.deliver()
    assert cluster[4].state.configuration == Configuration((1, 2, 3, 4))
    assert {node.machine.state.configuration for node in cluster.nodes.values()} == {
        Configuration((1, 2, 3, 4))
    }


def test_a_new_leader_changes_no_members_before_it_has_committed_what_it_found() -> None:
    """RF-9."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.lost = lambda message: isinstance(message, AppendReply)
    cluster[1].change(MemberChange(REMOVE, 3))
    cluster.deliver()
    cluster[2].step(TimeoutNow(2, 1, 2))
    cluster.deliver()
    assert role_of(cluster[2]) is Role.LEADER
    assert cluster[2].change(MemberChange(REMOVE, 1)) == "another change may be under way"
    cluster.cut()
    cluster.tick(2)
    assert cluster[2].state.configuration == Configuration((1, 2))


def test_the_last_voter_stays() -> None:
    """RF-9."""
    cluster = Cluster(1)
    leader = cluster.elect(1)
    assert leader.change(MemberChange(REMOVE, 1)) == "change 'remove 1': would leave no voter"
    assert leader.state.configuration == Configuration((1,))


def test_a_smaller_majority_commits_what_waits() -> None:
    cluster = Cluster(1, 2, 3, 4)
    leader = cluster.elect(1)
    cluster.cut(4)
    leader.change(MemberChange(REMOVE, 4))
    leader.propose(b"x")
    messages = cluster.collect()
    # The change reaches two, the entry behind it one.
    change = [m for m in messages if isinstance(m, AppendEntries)]
    leader.step(AppendReply(1, 2, 2, 3))
    leader.step(AppendReply(1, 3, 2, 3))
    assert leader.state.configuration.voters == (1, 2, 3)
    assert len(change) == 6
    leader.step(AppendReply(1, 2, 2, 4))
    cluster.collect()
    assert cluster.nodes[1].texts == [b"x"]


def test_a_change_that_makes_a_majority_of_those_who_have_an_entry_commits_it() -> None:
    cluster = Cluster(1, 2)
    leader = cluster.elect(1)
    leader.read(b"r")
    leader.change(MemberChange(REMOVE, 2))
    leader.propose(b"x")
    leader.take_effects()
    leader.step(AppendReply(1, 2, 2, 3))
    node = cluster.nodes[1]
    node.perform(leader.take_effects())
    assert node.texts == [b"x"]
    assert node.reads == [(2, b"r")]


def test_a_leader_that_is_removed_takes_no_proposals_and_steps_down() -> None:
    """RF-12."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    assert leader.change(MemberChange(REMOVE, 1)) is None
    assert leader.propose(b"x") == "this leader is about to be no voter"
    cluster.deliver()
    assert role_of(leader) is Role.FOLLOWER
    assert cluster.nodes[1].became[-1].reason == "it is no voter any more"
    cluster.tick(40)
    assert {cluster[2].leader, cluster[3].leader} <= {2, 3}
    assert leader.propose(b"x") is None or leader.leader is None


def test_a_leader_that_finds_its_own_removal_in_its_log_takes_no_proposals() -> None:
    """RF-12."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.lost = lambda message: isinstance(message, AppendReply)
    cluster[1].change(MemberChange(LEARNER, 2))
    cluster.deliver()
    cluster[2].step(TimeoutNow(2, 1, 2))
    cluster.deliver()
    assert role_of(cluster[2]) is Role.LEADER
    assert cluster[2].propose(b"x") == "this leader is about to be no voter"
    cluster.cut()
    cluster.tick(2)
    assert role_of(cluster[2]) is Role.FOLLOWER


# Time.


def test_a_leader_that_hears_of_no_majority_steps_down() -> None:
    """RF-10."""
    cluster = Cluster(1, 2, 3, learners=(4,))
    leader = cluster.elect(1)
    cluster.cut(2)
    cluster.tick(25, 1)
    assert role_of(leader) is Role.LEADER
    cluster.cut(2, 3)
    cluster.tick(20, 1)
    assert role_of(leader) is Role.FOLLOWER
    assert cluster.nodes[1].became[-1].reason == "heard of no majority"
    assert leader.propose(b"x") == "no leader is known"


# Leadership transfer.


def test_leadership_is_handed_over_at_once_to_a_member_that_has_all() -> None:
    """RF-12."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    assert leader.transfer(2) is None
    assert leader.propose(b"x") == "leadership is being handed over to 2"
    cluster.deliver()
    assert [cluster[n].leader for n in (1, 2, 3)] == [2, 2, 2]
    assert cluster.nodes[2].became[-2].reason == "the leader hands over"
    assert cluster[2].state.term == 3


def test_leadership_is_handed_over_when_the_member_has_caught_up() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.cut(2)
    leader.propose(b"x")
    cluster.deliver()
    leader.unreachable(2)
    cluster.cut()
    assert leader.transfer(2) is None
    assert leader.transfer(2) is None  # it is under way
    cluster.deliver()
    assert cluster[1].leader == 2
    assert cluster.nodes[2].texts == [b"x"]


def test_a_transfer_that_fails_ends_after_an_election_timeout() -> None:
    """RF-12."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.lost = lambda message: isinstance(message, TimeoutNow)
    leader.transfer(2)
    cluster.tick(9, 1)
    assert leader.propose(b"x") is not None
    cluster.tick(1, 1)
    assert leader.propose(b"x") is None
    assert role_of(leader) is Role.LEADER


def test_a_transfer_puts_off_nothing_else() -> None:
    """RF-10."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.cut(2, 3)
    for to in (2, 3) * 10:
        leader.transfer(to)
        cluster.tick(1, 1)
    assert role_of(leader) is Role.FOLLOWER


@pytest.mark.parametrize(
    ("to", "why"), [(1, "member 1 leads already"), (3, "member 3 is no voter"), (9, "no voter")]
)
def test_transfers_that_cannot_be(to: int, why: str) -> None:
    cluster = Cluster(1, 2, learners=(3,))
    refused = cluster.elect(1).transfer(to)
    assert refused is not None
    assert why in refused


def test_a_successor_that_is_removed_ends_the_transfer() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    cluster.lost = lambda message: isinstance(message, TimeoutNow)
    for removed, refused in ((3, True), (2, False)):
        leader.transfer(1)
        leader.change(MemberChange(REMOVE, removed))
        leader.transfer(2)
        cluster.deliver()
        assert (leader.propose(b"x") is not None) is refused


# Reads.


def test_a_read_waits_for_a_majority() -> None:
    """RF-7."""
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    leader.propose(b"x")
    cluster.deliver()
    cluster.cut(2, 3)
    leader.read(b"a")
    cluster.deliver()
    assert cluster.nodes[1].reads == []
    cluster.cut(3)
    cluster.tick(1, 1)
    assert cluster.nodes[1].reads == [(3, b"a")]


def test_a_follower_asks_its_leader() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    assert cluster[2].read(b"a") is None
    cluster.deliver()
    assert cluster.nodes[2].reads == [(2, b"a")]
    assert cluster.nodes[1].reads == []


def test_a_new_leader_answers_no_read_before_it_knows_what_is_committed() -> None:
    """RF-7."""
    cluster = Cluster(1, 2, 3)
    cluster.lost = lambda message: isinstance(message, AppendReply)
    leader = cluster.elect(1)
    leader.read(b"a")
    cluster.deliver()
    assert cluster.nodes[1].reads == []
    cluster.cut()
    cluster.tick(2)
    assert cluster.nodes[1].reads == [(2, b"a")]


def test_a_leader_that_was_deposed_answers_no_read() -> None:
    """RF-7."""
    cluster = Cluster(1, 2, 3)
    old = cluster.elect(1)
    cluster.cut(1)
    cluster.tick(30, 2, 3)
    assert role_of(old) is Role.LEADER
    old.read(b"a")
    cluster.cut()
    cluster.tick(5)
    assert role_of(old) is Role.FOLLOWER
    assert cluster.nodes[1].reads == []


def test_heartbeats_come_as_seldom_as_wanted() -> None:
    state = MemberState(1, Configuration((1, 2)))
    leader = RaftLeader(state, 10, 3)
    leader.begin()
    state.take_effects()
    assert [(leader.tick(), len(state.take_effects())) for _ in range(6)] == [
        (True, 0),
        (True, 0),
        (True, 1),
    ] * 2


def test_a_reply_without_a_read_is_harmless() -> None:
    cluster = Cluster(1, 2, 3)
    leader = cluster.elect(1)
    leader.step(HeartbeatReply(1, 2, 2, b"7"))
    assert sent(leader) == []
