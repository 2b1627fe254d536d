"""An agent's status becomes a line for each node of its round."""

from __future__ import annotations

import dataclasses

from holdfast.agent.agent import AgentStatus
from holdfast.agent.attempt import Membership
from holdfast.agent.effects import Place
from holdfast.agent.machine import State
from holdfast.agent.roles import NodeInfo
from holdfast.cli.run_view import view
from holdfast.ids import NodeId
from holdfast.rendezvous.handler import Round
from holdfast.rendezvous.model import Member
from holdfast.store.memory import MemoryStore

STORE = MemoryStore()
RUNNING = AgentStatus(
    state=State.RUNNING,
    reason="why",
    place=Place(round=3, node=1, nodes=3, workers=2, failures=1),
    membership=Membership(
        here=Round(
            number=3,
            rank=1,
            world_size=3,
            store=STORE,
            board=STORE,
            master_address="a",
            master_port=1,
            members=tuple(Member(NodeId(f"n{n}"), f"host{n}", "a", 1) for n in range(3)),
            reason="",
        ),
        nodes=(NodeInfo("r", 4), NodeInfo("r", 2), NodeInfo("s", 1)),
        torch_store=False,
    ),
    turned_at=0.0,
)


def lines(status: AgentStatus) -> list[str]:
    found = view(status, "here", 5)
    return [str(node) for node in (found.here, *found.others)]


def test_a_round() -> None:
    assert lines(RUNNING) == [
        "here  running  round 3  ranks 4-5 of 7  restarts 1/5  why",
        "host0  member  round 3  ranks 0-3 of 7",
        "host2  member  round 3  rank 6 of 7",
    ]


def test_before_a_round() -> None:
    assert lines(dataclasses.replace(RUNNING, place=None, membership=None, state=State.INIT)) == [
        "here  init  restarts 0/5  why"
    ]


def test_the_last_round_is_over_once_the_next_is_asked_for() -> None:
    assert lines(dataclasses.replace(RUNNING, state=State.JOINING)) == [
        "here  joining  restarts 1/5  why"
    ]
