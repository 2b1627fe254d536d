"""A replicated store, step by step: three members that talk in order, and their clients."""

from __future__ import annotations

import pytest

from holdfast.errors import PeerViolation
from holdfast.ids import SessionId
from holdfast.store import service as service_module
from holdfast.store.messages import (
    Call,
    Cancel,
    Changed,
    Hello,
    Members,
    Parting,
    Ping,
    Pong,
    Reply,
    WatchOpen,
    WatchSnapshot,
    Welcome,
    encode,
)
from holdfast.store.ops import (
    Add,
    Get,
    LeaseGrant,
    LeaseKeep,
    ListPrefix,
    Set,
    Wait,
)
from holdfast.store.raft import leader as raft_leader
from holdfast.store.raft.messages import PreVoteReply, TimeoutNow, VoteReply
from holdfast.store.replica import kept
from holdfast.store.replica.care import LOST_S
from holdfast.store.replica.machine import TICK_S, Replica
from holdfast.store.replica.messages import JoinRequest, JoinState
from holdfast.store.replica.policy import MEMBERS_MAX
from holdfast.store.service import LINGER_S, Service
from tests.unit.store.replica.cluster import LIFE, Cluster


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def states(cluster: Cluster) -> list[object]:
    return [machine.service.keyspace.dump() for machine in cluster.machines.values()]


def test_one_member_serves_alone_and_sends_no_message() -> None:
    cluster = Cluster(1)
    members, welcome = cluster.connect(1, 10)
    assert members == Members(True, "m1:1", ("m1:1",))
    assert welcome == Welcome(LIFE, False)
    assert cluster.call(1, 10, 1, Set("k", b"v")) == 1
    assert cluster.call(1, 10, 2, Get("k")).value == b"v"
    assert not cluster._messages


def test_mb1_a_write_is_on_every_member_when_it_is_answered(cluster: Cluster) -> None:
    assert cluster.machines[1].configuration.voters == (1, 2, 3)
    cluster.connect(1, 10)
    assert cluster.call(1, 10, 1, Add("n", 5)) == 5
    cluster.pass_time(0.2)
    one, two, three = states(cluster)
    assert one == two == three
    assert cluster.machines[2].status().keys == 1


def test_mb1_a_write_is_performed_once_over_a_change_of_leader(cluster: Cluster) -> None:
    cluster.connect(1, 10)
    cluster.call(1, 10, 1, Add("n", 5))
    cluster.cut.add(1)
    cluster.pass_time(4.0)
    new = cluster.leader()
    members, welcome = cluster.connect(new, 20, life=LIFE)
    assert (members.here, members.leader) == (True, f"m{new}:1")
    assert welcome == Welcome(LIFE, True)
    assert cluster.call(new, 20, 1, Add("n", 5)) == 5  # the same number: the same answer
    assert cluster.call(new, 20, 2, Add("n", 5)) == 10
    assert cluster.say(new, 20, Call(1, 3, Add("n", 5)), Ping()) == [Pong()]  # settled: no answer


def test_mb2_a_deposed_leader_answers_no_read_and_no_write(cluster: Cluster) -> None:
    cluster.connect(1, 10)
    cluster.cut.add(1)
    assert cluster.say(1, 10, Call(1, 1, Get("k")), Call(2, 1, Set("k", b"lost"))) == []
    cluster.pass_time(4.0)
    assert not cluster.machines[1].leads  # it heard of no majority
    (members,) = cluster.take(1, 10)
    assert members == Members(False, "", ("m1:1", "m2:1", "m3:1"))
    assert (1, 10) in cluster.hung_up
    new = cluster.leader()
    cluster.connect(new, 20, life=LIFE)
    assert cluster.call(new, 20, 1, Get("k")) is None


def test_mb5_a_member_that_does_not_lead_names_the_leader(cluster: Cluster) -> None:
    (members,) = cluster.connect(2, 20)
    assert members == Members(False, "m1:1", ("m1:1", "m2:1", "m3:1"))
    assert (2, 20) in cluster.hung_up
    cluster.machines[2].receive(20, encode(Ping()), cluster.now)  # closed meanwhile
    cluster.machines[2].disconnect(20, cluster.now)


def test_clients_that_greet_a_leader_that_steps_down_are_turned_away(cluster: Cluster) -> None:
    cluster.cut.add(1)
    assert cluster.connect(1, 10) == []
    cluster.pass_time(4.0)
    assert isinstance(cluster.take(1, 10)[0], Members)


def test_waits_watches_and_reads_are_served_by_the_leader(cluster: Cluster) -> None:
    cluster.connect(1, 10)
    cluster.connect(1, 11, session=2)
    assert cluster.say(1, 10, WatchOpen(1, True, "")) == [WatchSnapshot(1, True, 0, ())]
    assert cluster.say(1, 10, Call(1, 1, Wait(("k",)))) == []
    cluster.call(1, 11, 1, Set("k", b"v"))
    waited, changed = cluster.take(1, 10)
    assert isinstance(waited, Reply)
    assert isinstance(changed, Changed)
    assert cluster.say(1, 10, Call(2, 1, Wait(("x",))), Cancel(2))[0].number == 2  # type: ignore[union-attr]
    assert len(cluster.call(1, 10, 3, ListPrefix(""))) == 1


def test_what_reads_acknowledge_does_not_settle_a_write_here_alone(cluster: Cluster) -> None:
    """A write that its client gave up must be performed by all members, or by none."""
    cluster.connect(1, 10)
    cluster.call(1, 10, 2, Get("k"), ack=2)
    cluster.say(1, 10, Call(1, 1, Set("k", b"late")))
    cluster.pass_time(0.2)
    one, two, three = states(cluster)
    assert one == two == three


def test_mb3_a_lease_has_its_whole_time_again_with_a_new_leader(cluster: Cluster) -> None:
    cluster.connect(1, 10)
    lease = cluster.call(1, 10, 1, LeaseGrant(3.0))
    cluster.call(1, 10, 2, Set("k", b"v", lease.id))
    cluster.pass_time(2.0)
    cluster.cut.add(1)
    cluster.pass_time(4.0)
    new = cluster.leader()
    cluster.connect(new, 20, life=LIFE)
    assert cluster.call(new, 20, 3, Get("k")) is not None
    cluster.call(new, 20, 4, LeaseKeep(lease.id))
    cluster.pass_time(2.8)
    assert cluster.call(new, 20, 5, Get("k")) is not None
    cluster.pass_time(0.5)
    assert cluster.call(new, 20, 6, Get("k")) is None


def test_a_lease_that_lingers_ends_soon_after_its_client_died(cluster: Cluster) -> None:
    cluster.connect(1, 10)
    lease = cluster.call(1, 10, 1, LeaseGrant(60.0, 0.5))
    cluster.call(1, 10, 2, Set("k", b"v", lease.id))
    cluster.machines[1].disconnect(10, cluster.now)
    cluster.pass_time(1.0)
    assert [len(machine.service.keyspace) for machine in cluster.machines.values()] == [0, 0, 0]


def test_a_client_that_parts_keeps_its_leases(cluster: Cluster) -> None:
    cluster.connect(1, 10)
    lease = cluster.call(1, 10, 1, LeaseGrant(60.0, 0.5))
    cluster.call(1, 10, 2, Set("k", b"v", lease.id))
    cluster.say(1, 10, Parting())
    cluster.machines[1].disconnect(10, cluster.now)
    cluster.pass_time(1.0)
    assert len(cluster.machines[2].service.keyspace) == 1


def test_a_session_that_was_away_for_too_long_is_forgotten_by_all(cluster: Cluster) -> None:
    cluster.connect(1, 10)
    cluster.call(1, 10, 1, Set("k", b"v"))
    cluster.machines[1].disconnect(10, cluster.now)
    cluster.pass_time(LINGER_S + 1.0)
    assert all(not machine.service.sessions() for machine in cluster.machines.values())
    _, welcome = cluster.connect(1, 11, life=LIFE)
    assert welcome == Welcome(LIFE, False)


def test_a_client_that_breaks_the_protocol_is_refused(cluster: Cluster) -> None:
    machine = cluster.machines[1]
    machine.connect(9)
    with pytest.raises(PeerViolation, match="first message"):
        machine.receive(9, encode(Ping()), cluster.now)
    cluster.connect(1, 10)
    with pytest.raises(PeerViolation, match="second Hello"):
        machine.receive(10, encode(Hello(SessionId(1), 0, 1)), cluster.now)
    cluster.say(1, 10, WatchOpen(1, True, ""), WatchOpen(1, True, ""), Call(1, 1, Get("k")))
    assert (1, 10) in cluster.hung_up


def test_a_client_that_does_not_read_gets_no_more_answers(cluster: Cluster) -> None:
    machine = cluster.machines[1]
    cluster.connect(1, 10)
    cluster.call(1, 10, 1, Set("k", b"x" * 700_000))
    machine.congest(10)
    assert cluster.say(1, 10, *(Call(number, 1, Get("k")) for number in range(2, 6))) == []
    assert machine.next_wake() > cluster.now
    machine.relieve(10)
    assert machine.next_wake() == cluster.now
    assert machine.queued_bytes == 0
    assert len(machine.take_effects()) == 2  # the next when these are on their way
    assert machine.next_wake() == cluster.now
    assert len(machine.take_effects()) == 2
    assert machine.next_wake() > cluster.now


def test_what_raft_refuses_closes_the_connection(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raft_leader, "UNCOMMITTED_BYTES_MAX", 200)
    monkeypatch.setattr(service_module, "LINGER_S", 0.0)
    for connection in (9, 10):
        cluster.connect(1, connection, session=connection)
    lease = cluster.call(1, 9, 1, LeaseGrant(60.0, 0.5))
    machine = cluster.machines[1]
    cluster.cut |= {2, 3}
    cluster.say(1, 10, Call(1, 1, Set("k", b"x" * 200)))
    cluster.say(1, 10, Call(2, 1, Set("k", b"x" * 200)))
    assert (1, 10) in cluster.hung_up
    assert cluster.connect(1, 11, session=3) == []
    assert (1, 11) in cluster.hung_up
    machine.disconnect(9, cluster.now)  # its end waits, and comes to pass
    machine.admit(JoinRequest(4, "m4:1"), cluster.now)
    cluster.pass_time(0.2)
    cluster.cut.clear()
    cluster.pass_time(2.0)
    assert not machine.service.keyspace.has_lease(lease.id)
    assert not machine.service.sessions()


def test_a_member_joins_with_the_state_and_a_lost_one_is_replaced(cluster: Cluster) -> None:
    """RP-2, and a snapshot."""
    cluster.connect(1, 10)
    cluster.call(1, 10, 1, Set("k", b"v"))
    del cluster.machines[3]
    cluster.pass_time(2.0)
    cluster.start(4)
    cluster.join(4)
    assert cluster.machines[1].configuration.voters == (1, 2, 4)
    assert isinstance(cluster.take(1, 10)[-1], Members)
    one, two, four = states(cluster)
    assert one == two == four
    assert "m3:1" not in cluster.machines[4].addresses()
    assert cluster.machines[4].peers() == {1: "m1:1", 2: "m2:1"}
    assert cluster.machines[4].service.incarnation == LIFE
    assert not cluster.machines[1].knows(3)
    assert cluster.machines[2].knows(3)  # a follower cannot be sure


def test_a_change_of_the_members_follows_the_last_one_at_once(cluster: Cluster) -> None:
    """RP-2: no time passes between the removal of a lost voter and the vote of another member."""
    del cluster.machines[3]
    cluster.start(4)
    for _ in range(2):
        cluster.machines[4].learn(cluster.machines[1].admit(JoinRequest(4, "m4:1"), cluster.now))
        cluster.settle()
    while cluster.machines[1].configuration.voters == (1, 2, 3):
        assert cluster.now < 4 * LOST_S
        cluster.pass_time(TICK_S / 4)
    assert cluster.machines[1].configuration.voters == (1, 2, 4)


def test_requests_to_join_are_passed_on_refused_or_put_off(cluster: Cluster) -> None:
    follower = cluster.machines[2].admit(JoinRequest(9, "m9:1"), cluster.now)
    assert (follower.state, follower.leader) == (JoinState.ELSEWHERE, "m1:1")
    alone = Replica(Service(5), 8, "m8:1", cluster.machines[1]._raft._rng, 0.0, founder=False)
    assert alone.admit(JoinRequest(9, "m9:1"), 0.0).state is JoinState.WAIT
    leader = cluster.machines[1]
    for _ in range(2):  # announced first, then added: one change at a time
        assert leader.admit(JoinRequest(4, "m4:1"), cluster.now).state is JoinState.WAIT
        assert leader.admit(JoinRequest(5, "m5:1"), cluster.now).state is JoinState.WAIT
        cluster.settle()
    assert leader.configuration.learners == (4,)
    for number in range(4, MEMBERS_MAX + 1):
        cluster.start(number)
        cluster.join(number)
    refused = cluster.machines[1].admit(JoinRequest(99, "m99:1"), cluster.now)
    assert refused.state is JoinState.REFUSED
    assert "9 members" in refused.why


def test_a_leader_that_slept_takes_no_member_for_lost(cluster: Cluster) -> None:
    cluster.start(4)
    cluster.join(4)
    cluster.now += 2 * LOST_S
    cluster.machines[1].tick(cluster.now)
    cluster.settle()
    assert cluster.machines[1].configuration.members == (1, 2, 3, 4)


def test_a_leader_hands_over(cluster: Cluster) -> None:
    cluster.connect(1, 10)
    assert not cluster.machines[2].hand_over()
    assert cluster.machines[1].hand_over()
    cluster.pass_time(0.3)
    assert not cluster.machines[1].leads
    assert cluster.take(1, 10)[-1].here is False  # type: ignore[union-attr]
    assert not Cluster(1).machines[1].hand_over()


def test_a_leader_of_a_later_term_that_is_elected_at_once(cluster: Cluster) -> None:
    cluster.machines[2].step(TimeoutNow(2, 1, cluster.machines[2]._raft.state.term), cluster.now)
    cluster.settle()
    assert cluster.leader() == 2


def test_a_member_that_was_removed_is_told(cluster: Cluster) -> None:
    machine = cluster.machines[2]
    machine.unreachable(1)
    assert machine.dismiss(1, "gone for too long")
    cluster.settle()
    assert cluster.told[-1] == "no member of the store any more: gone for too long"


def test_a_leader_that_was_deposed_dismisses_no_member(cluster: Cluster) -> None:
    """It does not know the members that joined since, and these hear of another leader."""
    machine = cluster.machines[2]
    assert machine.leader == 1
    assert not machine.dismiss(3, "unknown here")
    cluster.cut.add(1)
    for _ in range(10):
        machine._raft.tick()
    assert machine.dismiss(3, "unknown here")  # it does not hear of a leader any more


def test_a_leader_that_has_just_begun_dismisses_no_member(cluster: Cluster) -> None:
    """There may be members of which it does not know yet that they were added."""
    cluster.cut |= {1, 3}
    machine = cluster.machines[2]
    machine._raft.campaign()
    for message in (PreVoteReply(2, 3, 3, reject=False), VoteReply(2, 3, 3, reject=False)):
        machine.step(message, cluster.now)
    cluster.settle()
    assert machine.leads
    assert machine.knows(9)
    cluster.cut = {1}
    cluster.pass_time(0.5)
    assert not machine.knows(9)


def test_mb6_the_log_is_dropped_now_and_then(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "KEPT_ENTRIES", 4)
    cluster.connect(1, 10)
    for number in range(1, 20):
        cluster.call(1, 10, number, Add("n", 1))
    log = cluster.machines[1]._raft.state.log
    assert log.last_index - log.base_index <= 9


def test_reads_of_a_connection_that_is_over_are_forgotten(cluster: Cluster) -> None:
    machine = cluster.machines[1]
    cluster.connect(1, 10)
    machine.receive(10, encode(Call(1, 1, Get("k"))), cluster.now)
    machine.disconnect(10, cluster.now)
    cluster.settle()
    assert cluster.take(1, 10) == []
    assert machine.next_wake() >= cluster.now


def test_a_write_of_a_session_that_is_forgotten_is_ignored(cluster: Cluster) -> None:
    service = cluster.machines[1].service
    service.write(SessionId(99), Call(1, 1, Set("k", b"v")), 0.0)
    service.hang_up_session(SessionId(99), "gone", 0.0)
    assert len(service.keyspace) == 0
