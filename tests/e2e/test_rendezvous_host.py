"""The node that hosts the store, and the others without it; nodes that are told to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.rendezvous.port import HeldPort
from holdfast.store.etcd.local_server import LocalEtcdServer
from tests.e2e.rendezvous_nodes import (
    BRIEF,
    Node,
    Nodes,
    Place,
    built_in,
    met,
    next_round,
    nodes_at,
    to_be_hosted,
)
from tests.e2e.reporting import TIMEOUT_S

TERMINATED = 128 + signal.SIGTERM
QUICK = {"read_timeout": "2", "heartbeat_timeout": "2"}
"""How long operations may take; with the lease it bounds how long a store may be away."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """At a store that one of the nodes hosts."""
    with to_be_hosted(tmp_path) as place, nodes_at(place) as found:
        yield found


# The host of the store.


def ends_with_the_store(node: Node, order: str) -> None:
    """The node learns that the store is lost, ends with the reason, and leaves nothing."""
    lost = node.did(order) if order == "next" else node.do("next")
    assert lost["error"] == "RendezvousLost"
    assert node.hear("RunEnded")["reason"] in lost["text"]
    assert node.do("state")["over"] in lost["text"]
    node.leave()


def test_two_nodes_end_when_the_host_of_the_store_is_killed(nodes: Nodes) -> None:
    host = nodes.start(2, is_host="true")
    working = nodes.start(2, reconnect_within_s="0.5")
    next_round([host, working], 1)
    host.kill()
    ends_with_the_store(working, "state")


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_nodes_end_when_etcd_is_gone(backend: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(LocalEtcdServer())
        place = Place(backend, str(server.addresses[0])).using(**BRIEF, **QUICK)
        nodes = stack.enter_context(nodes_at(place))
        working = [nodes.start(2), nodes.start(2)]
        next_round(working, 1)
        spare = nodes.start(2)
        spare.order("next")
        spare.hear("created")
        server.kill(0)
        for node in working:
            ends_with_the_store(node, "state")
        ends_with_the_store(spare, "next")


def test_the_host_leaves_last(nodes: Nodes) -> None:
    """The others use the store to the end, and end well (E3)."""
    host = nodes.start(3, is_host="true")
    a, b = nodes.start(3), nodes.start(3)
    next_round([host, a, b], 1)
    host.do("write", 1, "result", "42")
    host.do("close", "done")
    host.order("leave")
    host.hear("leaving")
    for node in (a, b):
        node.hear("RunEnded")
        assert node.do("read", 1, "result")["value"] == "42"
        assert host.process.poll() is None
        node.leave()
    host.ended()


def test_the_host_does_not_wait_for_the_dead(nodes: Nodes) -> None:
    host = nodes.start(2, is_host="true")
    a = nodes.start(2)
    next_round([host, a], 1)
    host.order("leave")
    host.hear("leaving")
    a.kill()
    host.ended()


def test_a_run_goes_on_while_its_host_leaves(nodes: Nodes) -> None:
    host = nodes.lead(2, 3, is_host="true", last_call_timeout="500")  # it waits for all three
    a, b = nodes.start(2, 3), nodes.start(2, 3)
    for node in (a, b):
        node.order("next")
    met([host, a, b], 1)
    host.order("leave")
    for node in (a, b):
        assert host.host in node.hear("RoundEnded", round=1)["reason"]
    next_round([a, b], 2)
    a.do("write", 2, "result", "42")
    assert b.do("read", 2, "result")["value"] == "42"
    for node in (a, b):
        node.leave()
    host.ended()


def test_the_node_that_binds_the_address_hosts_the_store(tmp_path: Path) -> None:
    """No node is told to host: one does, the others find it."""
    with to_be_hosted(tmp_path) as place:
        undecided = Place(place.backend, place.endpoint, env=place.env, hangs_up=True)
        with nodes_at(undecided) as nodes:
            everybody = [nodes.start(3) for _ in range(3)]
            next_round(everybody, 1)
            everybody[0].do("close", "done")
            for node in everybody:
                node.hear("RunEnded")
                node.order("leave")
            for node in everybody:
                node.ended()


def test_static_ranks_stay_with_their_nodes(tmp_path: Path) -> None:
    master = HeldPort("127.0.0.1")
    try:
        with to_be_hosted(tmp_path) as place:
            port = place.endpoint.rpartition(":")[2]
            static = Place("static", f"127.0.0.1:{master.port}", env=place.env).using(
                store_port=port
            )
            with nodes_at(static) as nodes:
                everybody = [nodes.start(3, rank=str(rank)) for rank in (2, 0, 1)]
                assert next_round(everybody, 1) == [2, 0, 1]
                twin = nodes.start(3, rank="2")
                twin.order("next")
                everybody[1].hear_waiting("1 waiting")
                everybody[0].kill()
                for node in everybody[1:]:
                    node.hear("RoundEnded", round=1)
                    node.order("next")
                everybody[0] = twin
                assert met(everybody, 2) == [2, 0, 1]
                assert {
                    said["master"]
                    for node in everybody
                    for said in node.said
                    if said.get("order") == "next"
                } == {f"127.0.0.1:{master.port}"}
                for node in (everybody[0], everybody[2]):
                    node.leave()
                everybody[1].leave()
    finally:
        master.close()


# SIGTERM, in every phase of a node's life.


def terminate(node: Node) -> None:
    node.process.send_signal(signal.SIGTERM)
    node.ended(TERMINATED)


def test_sigterm_while_the_store_is_not_there(nodes: Nodes) -> None:
    node = nodes.start(1)
    node.hear("started")
    terminate(node)


def test_sigterm_while_waiting_working_and_reforming(tmp_path: Path) -> None:
    """The run goes on without the node each time (E1)."""
    with built_in(tmp_path) as place, nodes_at(place) as nodes:
        idle = nodes.start(2, 3)
        idle.hear("created")
        terminate(idle)
        waiting = nodes.start(2, 3)
        waiting.order("next")
        waiting.hear_waiting("have 1 of 2")
        terminate(waiting)
        a, b = nodes.start(2, 3), nodes.start(2, 3)
        next_round([a, b], 1)
        spare = nodes.start(2, 3)
        spare.order("next")
        a.hear_waiting("1 waiting")
        terminate(spare)
        terminate(b)
        assert b.host in a.hear("RoundEnded", round=1)["reason"]
        b = nodes.start(2, 3)
        next_round([a, b], 2)
        # Being formed anew: `b` asks, `a` has heard of it and has not asked yet.
        b.order("next")
        a.hear("RoundEnded", round=2)
        terminate(a)
        b.hear_waiting("have 1 of 2")
        a = nodes.start(2, 3)
        a.order("next")
        met([a, b], 3)
        b.do("close", "done")
        a.hear("RunEnded")
        terminate(a)
        terminate(b)


def test_sigterm_while_the_host_waits_for_others(nodes: Nodes) -> None:
    """The run is closed, so the host waits; told to end, it hands over."""
    host = nodes.start(2, is_host="true")
    a = nodes.start(2)
    next_round([host, a], 1)
    host.do("close", "done")
    a.hear("RunEnded")
    host.order("leave")
    host.hear("waiting")  # for `a`; it has left the run
    host.process.send_signal(signal.SIGTERM)
    assert host.hear("left")["leaks"] == []
    assert host.process.wait(TIMEOUT_S) == TERMINATED
    a.order("leave")
    assert a.hear("left")["leaks"] == []


def test_sigterm_to_the_host_of_two_hands_the_store_over(nodes: Nodes) -> None:
    host = nodes.start(1, 2, is_host="true", last_call_timeout="500")
    a = nodes.start(1, 2)
    next_round([host, a], 1)
    assert a.do("count")["count"] == 1
    terminate(host)
    a.hear("RoundEnded", round=1)
    next_round([a], 2)
    assert a.do("count")["count"] == 2
    a.leave()
