"""Sixty-four nodes on one machine, each a process."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.rendezvous_nodes import built_in, met, nodes_at

NODES = 64


def test_sixty_four_nodes_meet_lose_their_leader_and_go_on(tmp_path: Path) -> None:
    with built_in(tmp_path) as place, nodes_at(place) as nodes:
        leader = nodes.lead(NODES - 1, NODES, last_call_timeout="500")  # it waits for all
        others = [nodes.start(NODES - 1, NODES) for _ in range(NODES - 1)]
        for node in others:
            node.order("next")
        met([leader, *others], 1)
        leader.kill()
        for node in others:
            assert f"{leader.host} is gone" in node.hear("RoundEnded", round=1)["reason"]
        for node in others:
            node.order("next")
        met(others, 2)
        others[-1].do("close", "done")
        for node in others:
            assert node.hear("RunEnded")["reason"] == "done"
            node.order("leave")
        for node in others:
            node.ended()
        assert [node.rounds() for node in others] == [[1, 2]] * len(others)
