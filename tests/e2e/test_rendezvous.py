"""A rendezvous between real processes, over every backend: nodes come, leave, die and come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.etcd.local_server import LocalEtcdServer
from tests.e2e.rendezvous_nodes import (
    BRIEF,
    Nodes,
    Place,
    built_in,
    met,
    next_round,
    nodes_at,
)


@pytest.fixture(scope="module")
def etcd() -> Iterator[str]:
    with LocalEtcdServer() as server:
        yield ",".join(map(str, server.addresses))


@pytest.fixture(params=["c10d", "etcd", "etcd-v2", "file"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path, etcd: str) -> Iterator[Nodes]:
    if request.param == "c10d":
        with built_in(tmp_path) as place, nodes_at(place) as found:
            yield found
        return
    endpoint = str(tmp_path / "store") if request.param == "file" else etcd
    with nodes_at(Place(request.param, endpoint)) as found:
        yield found


def test_nodes_come_leave_and_come_back(nodes: Nodes) -> None:
    a = nodes.lead(2, 3)
    b = nodes.start(2, 3)
    b.order("next")
    assert met([a, b], 1) == [0, 1]
    b.do("write", 1, "greeting", "hello")
    assert a.do("read", 1, "greeting")["value"] == "hello"
    # Scale up: a node that comes later waits, and the others can see it.
    c = nodes.start(2, 3)
    c.order("next")
    for node in (a, b):
        node.hear_waiting("1 waiting")
        state = node.do("state")
        assert (state["waiting"], state["over"]) == (1, None)
    a.order("next", "one more is there")
    assert a.host in b.hear("RoundEnded", round=1)["reason"]
    b.order("next")
    assert met([a, b, c], 2) == [0, 1, 2]
    # Scale down: leaving ends the round and not the run (E1).
    b.leave()
    for node in (a, c):
        assert b.host in node.hear("RoundEnded", round=2)["reason"]
        assert node.do("state")["closed"] is None
    assert next_round([a, c], 3) == [0, 1]
    # Back again, on the next occasion.
    b = nodes.start(2, 3)
    b.order("next")
    a.hear_waiting("1 waiting")
    a.order("next", "welcome back")
    c.hear("RoundEnded", round=3)
    c.order("next")
    assert met([a, b, c], 4) == [0, 2, 1]
    # The end reaches all nodes, whichever closes the run, and those that come later.
    b.do("close", "the job is done")
    for node in (a, b, c):
        assert node.hear("RunEnded")["reason"] == "the job is done"
        assert node.do("state")["closed"] == "the job is done"
    late = nodes.start(2, 3)
    for node, error in ((a, "RendezvousClosed"), (late, "RunOver")):
        refused = node.do("next")
        assert refused["error"] == error
        assert "the job is done" in refused["text"]
    for node in (a, b, c, late):
        node.leave()
    assert a.rounds() == [1, 2, 3, 4]


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_killed_node_is_replaced_by_a_spare(nodes: Nodes, victim: str) -> None:
    """On c10d the victim's lease would outlast the test: the closed connection tells."""
    mortal = nodes.place.mortal
    a = nodes.lead(3, None, **(mortal if victim == "leader" else {}))
    b = nodes.start(3, None, **(mortal if victim == "follower" else {}))
    c = nodes.start(3)
    for node in (b, c):
        node.order("next")
    ranks = met([a, b, c], 1)
    spare = nodes.start(3)
    spare.order("next")
    spare.hear_waiting("1 waiting")
    gone, *others = (a, b, c) if victim == "leader" else (b, a, c)
    gone.kill()
    for node in others:
        assert f"{gone.host} is gone" in node.hear("RoundEnded", round=1)["reason"]
    for node in others:
        node.order("next")
    place = ranks[[a, b, c].index(gone)]
    in_order = [spare if node is gone else node for node in (a, b, c)]
    found = met(in_order, 2)
    assert found == ranks, "who stays keeps its rank, the spare takes the free one"
    assert found[in_order.index(spare)] == place
    for node in in_order:
        node.leave()
    # One failure, one more round (E7).
    assert [node.rounds() for node in others] == [[1, 2], [1, 2]]
    assert spare.rounds() == [2]


def test_several_deaths_at_once_are_one_more_round(nodes: Nodes) -> None:
    """The leader is one of the dead; the remaining nodes go on, once both are missed."""
    mortal = nodes.place.mortal
    a = nodes.lead(2, 4, last_call_timeout="500", **mortal)  # it leads, and waits for all four
    b = nodes.start(2, 4, **mortal)
    left = [nodes.start(2, 4), nodes.start(2, 4)]
    for node in (b, *left):
        node.order("next")
    met([a, b, *left], 1)
    for node in (a, b):
        node.kill()
    for node in left:
        node.hear("RoundEnded", round=1)
        node.order("next")
    met(left, 2)
    left[0].do("close", "done")
    for node in left:
        node.hear("RunEnded")
        node.leave()
    assert [node.rounds() for node in left] == [[1, 2], [1, 2]]


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_silent_node_is_missed_fenced_and_welcome_again(nodes: Nodes, role: str) -> None:
    first = nodes.lead(3, None, **(BRIEF if role == "leader" else {}))
    second = nodes.start(3, None, **(BRIEF if role == "follower" else {}))
    a, silent = (second, first) if role == "leader" else (first, second)
    b = nodes.start(3)
    for node in (second, b):
        node.order("next")
    met([a, b, silent], 1)
    spare = nodes.start(3)
    spare.order("next")
    silent.stop()
    # The silence ends the round (E5), by the lease: its connections are open.
    for node in (a, b):
        assert f"{silent.host} is gone" in node.hear("RoundEnded", round=1)["reason"]
        node.order("next")
    met([a, b, spare], 2)
    # Orders that it finds when it wakes up, as if no time had passed.
    silent.order("write", 1, "late", "harm")
    silent.order("count")
    silent.wake()
    assert silent.did("write")["error"] == "Fenced"
    assert silent.did("count")["count"] == 0, "a round that is over counts no failures"
    silent.hear("RoundEnded", round=1)
    assert silent.do("state")["over"] is not None
    # It is a spare now, and gets the next place that is free.
    silent.order("next")
    b.leave()
    for node in (a, spare):
        assert f"{b.host} is gone" in node.hear("RoundEnded", round=2)["reason"]
        node.order("next")
    met([a, spare, silent], 3)
    for node in (a, spare, silent):
        node.leave()
    assert (a.rounds(), silent.rounds()) == ([1, 2, 3], [1, 3])


def test_failures_are_counted_once_for_each_round(nodes: Nodes) -> None:
    everybody = [nodes.start(3) for _ in range(3)]
    for number in (1, 2, 3):
        next_round(everybody, number)
        for node in everybody:
            node.order("count")
        assert [node.did("count")["count"] for node in everybody] == [number] * 3
        assert everybody[0].do("count")["count"] == number
    # A node that comes back as a new one does not reset the job's failures (E6).
    everybody[2].leave()
    for node in everybody[:2]:
        node.hear("RoundEnded", round=3)
    everybody[2] = nodes.start(3)
    next_round(everybody, 4)
    assert everybody[2].do("count")["count"] == 4
    for node in everybody:
        node.leave()
