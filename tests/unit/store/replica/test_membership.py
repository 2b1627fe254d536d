"""How members leave, hand over, and are known to be dead: MB-7 and MB-8."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from holdfast.ids import SessionId
from holdfast.store.ops import LeaseGrant, Set
from holdfast.store.raft.machine import Raft
from holdfast.store.raft.messages import Configuration
from holdfast.store.replica.membership import StoreMembership
from holdfast.store.replica.messages import JoinRequest, JoinState
from holdfast.store.replica.voices import DEAD_AFTER_S
from holdfast.store.service import Service
from tests.unit.store.replica.cluster import Cluster


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(3)


def leave(cluster: Cluster, *members: int) -> None:
    """Let members leave, as their servers do; one that is alone in the end stays."""
    for _ in range(100):
        for member in [one for one in members if one in cluster.machines]:
            machine = cluster.machines[member]
            machine.leave()
            cluster.settle()
            leaders = [one for one in cluster.machines.values() if one.leads]
            asked = not machine.leads and leaders
            reply = leaders[0].release(member, cluster.now) if asked else None
            if machine.is_gone or (reply is not None and reply.state is JoinState.GONE):
                del cluster.machines[member]
        cluster.pass_time(0.1)
        left = [cluster.machines[one] for one in members if one in cluster.machines]
        if all(machine.configuration.members == (machine.member,) for machine in left):
            return
    raise AssertionError(f"{members} do not leave: {cluster.told}")


def test_a_follower_that_leaves_is_removed_and_the_voters_stay_odd(cluster: Cluster) -> None:
    """MB-8, RP-2."""
    asked = cluster.machines[2].release(3, cluster.now)
    assert (asked.state, asked.leader) == (JoinState.ELSEWHERE, "m1:1")
    leave(cluster, 3)
    cluster.pass_time(1.0)
    assert cluster.machines[1].configuration == Configuration((1,), (2,))
    assert cluster.machines[1].release(3, cluster.now).state is JoinState.GONE


def test_members_leave_one_after_the_other_down_to_the_last_one(cluster: Cluster) -> None:
    """A leader hands over, to a voter or to a learner that becomes one; no write is lost."""
    cluster.connect(1, 10)
    cluster.call(1, 10, 1, Set("k", b"v"))
    leave(cluster, 1)
    cluster.pass_time(1.0)
    last = cluster.leader()
    assert len(cluster.machines[last].configuration.voters) == 1
    leave(cluster, last)
    (one,) = cluster.machines.values()
    cluster.pass_time(0.2)
    assert one.configuration == Configuration((one.member,))
    assert not one.is_deserted
    entries = {entry.key: entry.value for entry in one.service.keyspace.dump().items}
    assert entries == {"k": b"v"}


def test_all_leave_at_once(cluster: Cluster) -> None:
    leave(cluster, 1, 2, 3)
    (last,) = cluster.machines.values()
    assert last.leads


def test_rp4_a_member_waits_with_leaving_while_the_rest_would_be_no_majority(
    cluster: Cluster,
) -> None:
    cluster.cut.add(3)
    cluster.pass_time(2.0)
    assert cluster.machines[1].release(2, cluster.now).state is JoinState.WAIT
    cluster.pass_time(1.0)
    assert 2 in cluster.machines[1].configuration.voters
    cluster.cut.clear()
    cluster.pass_time(1.0)
    assert cluster.machines[1].release(2, cluster.now).state is JoinState.GONE


def hosted(cluster: Cluster) -> None:
    """Let each member belong to the client whose session has its number and 100."""
    for number, machine in cluster.machines.items():
        machine.belongs_to(100 + number)
        cluster.settle()
    for number in (2, 3):  # as by requests to join
        cluster.machines[1].admit(JoinRequest(number, f"m{number}:1", 100 + number), cluster.now)
    cluster.settle()


def test_mb7_the_client_in_a_leaders_process_dies_with_it(cluster: Cluster) -> None:
    hosted(cluster)
    cluster.connect(1, 10, session=101)
    lease = cluster.call(1, 10, 1, LeaseGrant(600.0, 0.5))
    voices = {n: cluster.machines[n].voices.begin(1) for n in (2, 3)}
    del cluster.machines[1]
    for number, voice in voices.items():
        cluster.machines[number].voices.end(1, voice, cluster.now, died=True)
    cluster.pass_time(5.0)
    leader = cluster.machines[cluster.leader()]
    assert not leader.service.keyspace.has_lease(lease.id)
    # It is removed at once, and the two that are left do not need each other's vote.
    assert len(leader.configuration.voters) == 1
    assert len(leader.configuration.members) == 2


def test_mb7_holds_for_a_removal_that_follows_another_at_once(cluster: Cluster) -> None:
    """A member that is removed without a tick of the clock since it died."""
    cluster.start(4)
    cluster.join(4)
    machine = cluster.machines[1]
    machine._places.put(2, "m2:1", 102)
    cluster.connect(1, 10, session=102)
    lease = cluster.call(1, 10, 1, LeaseGrant(600.0, 0.5))
    machine.disconnect(10, cluster.now, by_peer=False)
    machine.voices.end(2, machine.voices.begin(2), cluster.now, died=True)
    del cluster.machines[2]
    machine.release(4, cluster.now)
    cluster.now += DEAD_AFTER_S
    cluster.settle()
    assert not {2, 4} & set(machine.configuration.members)
    cluster.pass_time(5.0)
    assert not machine.service.keyspace.has_lease(lease.id)


def test_mb7_a_client_that_is_connected_has_not_died(cluster: Cluster) -> None:
    hosted(cluster)
    cluster.connect(1, 10, session=101)
    lease = cluster.call(1, 10, 1, LeaseGrant(600.0, 0.5))
    machine = cluster.machines[1]
    # The member whose owner it is speaks no more; the client itself is there.
    machine._places.put(2, "m2:1", 101)
    machine.voices.end(2, machine.voices.begin(2), cluster.now, died=True)
    cluster.pass_time(DEAD_AFTER_S + 1.0)
    assert machine.service.is_connected(SessionId(101))
    assert machine.service.keyspace.has_lease(lease.id)


def test_a_member_whose_others_have_died_is_deserted(cluster: Cluster) -> None:
    machine = cluster.machines[1]
    for number in (2, 3):
        del cluster.machines[number]
        machine.voices.end(number, machine.voices.begin(number), cluster.now, died=True)
    assert not machine.is_deserted
    cluster.pass_time(DEAD_AFTER_S + 0.1)
    assert machine.is_deserted
    assert not machine.is_gone


def test_one_that_is_dismissed_is_gone(cluster: Cluster) -> None:
    assert not cluster.machines[2].dismiss(3, "unknown here")
    assert not cluster.machines[2].is_gone  # another one leads
    assert cluster.machines[2].dismiss(1, "was silent")
    assert cluster.machines[2].is_gone


def test_one_that_is_dismissed_while_it_joins_and_added_again_is_not_gone(cluster: Cluster) -> None:
    """Else it would end without leaving, and the others would lack it."""
    leader, machine = cluster.machines[1], cluster.machines[2]
    assert machine.dismiss(1, "was silent")
    machine.learn(replace(leader.admit(JoinRequest(9, "m9:1"), cluster.now), members=()))
    assert machine.is_gone
    machine.learn(leader.admit(JoinRequest(2, "m2:1"), cluster.now))
    assert not machine.is_gone


def test_it_is_no_news_to_a_member_that_leaves_that_it_is_none_any_more(cluster: Cluster) -> None:
    machine = cluster.machines[2]
    machine.leave()
    assert not machine.dismiss(1, "was silent")
    assert machine.is_gone
    cluster.settle()
    assert not [text for text in cluster.told if "was silent" in text]


def test_what_a_member_puts_into_the_log_is_the_machines() -> None:
    alone = StoreMembership(Service(1), Raft(1, None, random.Random(1)), 0.0)
    assert not alone.is_gone
    with pytest.raises(NotImplementedError):
        alone._propose()


def test_a_leader_that_raft_has_deposed_asks_for_no_change(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = cluster.machines[1]
    monkeypatch.setattr(machine, "_leads_still", lambda: False)
    assert machine.release(3, cluster.now).state is JoinState.WAIT
    assert 3 in machine.configuration.voters
