"""A transport sees every request and every reply of an agent, below the table of calls."""

from __future__ import annotations

import operator

import pytest

from holdfast.errors import CallTimedOut, UsageError
from holdfast.rpc.client.transport import Link
from holdfast.rpc.wire.messages import Kind, Message
from tests.unit.rpc.world import Unchanged, agents


class Tap(Unchanged):
    """Records what it carries; drops requests, or refuses them."""

    def __init__(self) -> None:
        self.carried: list[Kind] = []
        self.drops = self.refuses = False

    def send(self, link: Link, message: Message) -> None:
        self.carried.append(message.kind)
        if self.refuses:
            raise UsageError("planted")
        if not self.drops:
            link.transmit(message)

    def receive(self, link: Link, message: Message) -> None:
        self.carried.append(message.kind)
        super().receive(link, message)


def test_calls_of_both_kinds_pass_through_it() -> None:
    tap = Tap()
    with agents(tap, None) as (agent, _):
        assert agent.call("w1", operator.add, (1, 2)) == 3
        assert agent.call_async("w1", operator.add, (1, 2)).wait() == 3
    assert tap.carried == [Kind.PYTHON_CALL, Kind.REPLY] * 2


def test_the_table_ends_a_call_whose_message_was_dropped() -> None:
    tap = Tap()
    with agents(tap, None) as (agent, _):
        tap.drops = True
        with pytest.raises(CallTimedOut):
            agent.call("w1", operator.add, (1, 2), timeout=0.01)
        assert agent.peer("w1").under_way == 0


def test_a_call_that_it_refuses_is_not_open() -> None:
    tap = Tap()
    with agents(tap, None) as (agent, _):
        assert agent.call("w1", operator.add, (1, 2)) == 3
        tap.refuses = True
        with pytest.raises(UsageError, match="planted"):
            agent.call("w1", operator.add, (1, 2))
        assert agent.peer("w1").under_way == 0


def test_a_late_reply_to_a_peer_without_a_connection_has_no_effect() -> None:
    with agents(Tap(), None) as (agent, _):
        agent.peer("w1").complete(7, Message(Kind.REPLY, 7))
        assert agent.call("w1", operator.add, (1, 2)) == 3
