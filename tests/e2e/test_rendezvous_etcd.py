"""A rendezvous over etcd: nodes need not notice that a member is killed; old rounds are removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.open import open_store
from tests.e2e.rendezvous_nodes import Node, Place, met, next_round, nodes_at
from tests.waiting import until

KEEPS = {"keep_alive_interval": "0.25", "keep_alive_max_attempt": "160"}
"""Many signs of life while a member is away, and time enough for each."""


@pytest.fixture
def cluster() -> Iterator[LocalEtcdServer]:
    with LocalEtcdServer(3) as server:
        yield server


def victim(cluster: LocalEtcdServer, who: str) -> int:
    leader = cluster.leader()
    return leader if who == "leader" else (leader + 1) % 3


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_a_run_survives_the_death_of_a_member(
    cluster: LocalEtcdServer, backend: str, who: str
) -> None:
    endpoint = ",".join(map(str, cluster.addresses))
    with nodes_at(Place(backend, endpoint).using(**KEEPS)) as nodes:
        # While nodes join: one waits, one is on its way, one comes later.
        a, b = nodes.lead(3), nodes.start(3)
        b.order("next")
        member = victim(cluster, who)
        cluster.kill(member)
        c = nodes.start(3)
        c.order("next")
        everybody = [a, b, c]
        ranks = met(everybody, 1)
        cluster.restart(member)
        # While they work.
        member = victim(cluster, who)
        cluster.kill(member)
        for number, node in enumerate(everybody):
            node.do("write", 1, f"part-{number}", "done")
        for node in everybody:
            assert node.do("read", 1, "part-2")["value"] == "done"
            assert node.do("count")["count"] == 1
        cluster.restart(member)
        assert [rounds_over(node) for node in everybody] == [[], [], []]
        # Afterwards it is a run like any other.
        assert next_round(everybody, 2) == ranks
        b.do("close", "done")
        for node in everybody:
            node.hear("RunEnded")
            node.leave()
        assert [node.rounds() for node in everybody] == [[1, 2]] * 3


def rounds_over(node: Node) -> list[int]:
    node.do("state")  # and what it has said until now is read
    return [said["round"] for said in node.said if said["event"] == "RoundEnded"]


def test_old_rounds_leave_nothing_in_etcd() -> None:
    """RM-5: the keys of a run do not grow with its rounds."""
    with (
        LocalEtcdServer(1) as server,
        nodes_at(Place("etcd", str(server.addresses[0]))) as nodes,
        open_store(f"etcd://{server.addresses[0]}/torchelastic/p2p") as store,
    ):
        both = [nodes.lead(2), nodes.start(2)]
        both[1].order("next")
        met(both, 1)
        for number in range(1, 8):
            for node in both:
                node.do("write", number, "part", "done")
            next_round(both, number + 1)
        until(lambda: store.count("round/") <= 1)
        kept = {entry.key.split("/")[2] for entry in store.list_prefix("roll/")}
        assert kept <= {"7", "8"}
        for node in both:
            node.leave()
