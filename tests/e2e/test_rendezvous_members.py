"""Runs whose nodes keep the store together: any of them may be lost, the founder as well."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.rendezvous_nodes import Node, Nodes, met, next_round, nodes_at, to_be_hosted
from tests.waiting import until


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """At a store that one of the nodes founds."""
    with to_be_hosted(tmp_path) as place, nodes_at(place) as found:
        yield found


def three(nodes: Nodes) -> list[Node]:
    """Start three nodes that meet in round 1; the first founds the store."""
    found = [nodes.start(2, 3, is_host=str(not one), last_call_timeout="500") for one in range(3)]
    next_round(found, 1)
    return found


def leads(node: Node) -> bool:
    return bool(node.do("leads")["leads"])


def test_a_run_goes_on_when_the_node_that_founded_it_is_killed(nodes: Nodes) -> None:
    """Nothing that was acknowledged is lost, and leaving and closing work as ever."""
    founder, a, b = three(nodes)
    assert founder.do("count")["count"] == 1
    founder.do("write", 1, "result", "42")
    founder.kill()
    for node in (a, b):
        assert founder.host in node.hear("RoundEnded", round=1)["reason"]
        node.order("next")
    met([a, b], 2)
    assert a.do("read", 1, "result")["value"] == "42"
    assert b.do("count")["count"] == 2
    a.do("close", "done")
    b.hear("RunEnded")
    for node in (a, b):
        node.order("leave")
    for node in (a, b):
        node.ended()


def test_a_run_survives_one_node_after_the_other(nodes: Nodes) -> None:
    """Each time a member is lost, the others are enough again, down to the last one."""
    config = {"last_call_timeout": "500"}
    founder, a, b = (nodes.start(1, 3, is_host=str(not one), **config) for one in range(3))
    next_round([founder, a, b], 1)
    founder.kill()
    for node in (a, b):
        node.hear("RoundEnded", round=1)
        node.order("next")
    met([a, b], 2)
    last, first = (a, b) if leads(a) else (b, a)
    until(lambda: last.do("leads")["voters"] == 1, every_s=0.05)
    first.kill()  # it does not lead, and does not vote any more
    last.hear("RoundEnded", round=2)
    next_round([last], 3)
    last.leave()


def test_a_round_goes_on_while_leadership_moves(nodes: Nodes) -> None:
    founder, a, b = everybody = three(nodes)
    founder.process.send_signal(signal.SIGSTOP)
    until(lambda: leads(a) or leads(b), every_s=0.05)
    founder.process.send_signal(signal.SIGCONT)
    until(lambda: not leads(founder), every_s=0.05)
    founder.do("write", 1, "from", "founder")
    for node in (a, b):
        assert node.do("read", 1, "from")["value"] == "founder"
    for node in everybody:
        assert node.do("state")["over"] is None
    for node in everybody:
        node.leave()


def test_a_node_that_comes_later_finds_the_run_by_any_endpoint(nodes: Nodes) -> None:
    """Three addresses of this machine stand for three hosts; the first one is lost."""
    port = nodes.place.endpoint.rpartition(":")[2]
    hosts = [f"127.0.0.{one}" for one in (1, 2, 3)]
    founder, a, b = (
        nodes.start(3, is_host=str(host == hosts[0]), local_addr=host) for host in hosts
    )
    next_round([founder, a, b], 1)
    founder.kill()
    for node in (a, b):
        node.hear("RoundEnded", round=1)
        node.order("next")
    endpoints = ",".join(f"{host}:{port}" for host in hosts)
    new = nodes.start(3, endpoint=endpoints, local_addr=hosts[0])
    new.order("next")
    met([a, b, new], 2)
    until(lambda: new.do("leads")["voters"] == 3, every_s=0.05)  # it has taken the founder's place
    for node in (a, b, new):
        node.order("leave")
    for node in (a, b, new):
        node.ended()


def test_all_members_leave_at_once(nodes: Nodes) -> None:
    everybody = three(nodes)
    everybody[1].do("close", "done")
    for node in everybody:
        node.hear("RunEnded")
        node.order("leave")
    for node in everybody:
        node.ended()


def test_all_members_are_terminated_at_once(nodes: Nodes) -> None:
    everybody = three(nodes)
    for node in everybody:
        node.process.send_signal(signal.SIGTERM)
    for node in everybody:
        node.ended(128 + signal.SIGTERM)
