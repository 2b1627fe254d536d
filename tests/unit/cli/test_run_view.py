"""An agent's status becomes a line, and the number of the other nodes."""

from __future__ import annotations

import dataclasses

from holdfast.agent.attempt import Membership
from holdfast.agent.effects import Place
from holdfast.agent.roles import NodeInfo, divide
from holdfast.agent.status import AgentStatus
from holdfast.agent.terms import State
from holdfast.cli.run_view import view
from holdfast.rendezvous.handler import Round
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
            members=(),
            reason="",
        ),
        share=divide((NodeInfo("r", 4), NodeInfo("r", 2), NodeInfo("s", 1)))[1],
        torch_store=False,
    ),
    turned_at=0.0,
)


def lines(status: AgentStatus) -> tuple[str, int]:
    found = view(status, "here", 5)
    return str(found.here), found.others


def test_a_round() -> None:
    assert lines(RUNNING) == ("here  running  round 3  ranks 4-5 of 7  restarts 1/5  why", 2)


def test_before_a_round() -> None:
    before = dataclasses.replace(RUNNING, place=None, membership=None, state=State.INIT)
    assert lines(before) == ("here  init  restarts 0/5  why", 0)


def test_the_last_round_is_over_once_the_next_is_asked_for() -> None:
    joining = dataclasses.replace(RUNNING, state=State.JOINING)
    assert lines(joining) == ("here  joining  restarts 1/5  why", 0)
