"""The current agent: set, got, reset, and what is said when there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.errors import UsageError
from holdfast.rpc.agent import Agent
from holdfast.rpc.current import current_agent, is_agent_set, reset_agent, set_agent
from holdfast.rpc.rref.rref import RRef
from tests.unit.rpc.world import agents


@pytest.fixture
def two() -> Iterator[list[Agent]]:
    with agents(None, None) as made:
        yield made
        if is_agent_set():
            reset_agent()


def test_there_is_none_at_first() -> None:
    assert not is_agent_set()
    with pytest.raises(UsageError) as caught:
        current_agent()
    assert str(caught.value) == (
        "Current RPC agent is not set! Did you initialize the RPC framework "
        "(e.g. by calling `rpc.init_rpc`)?"
    )
    with pytest.raises(UsageError, match=r"`rpc.init_rpc`"):
        RRef(3)


def test_set_got_and_reset(two: list[Agent]) -> None:
    set_agent(two[0])
    assert is_agent_set()
    assert current_agent() is two[0]
    assert reset_agent() is two[0]
    assert not is_agent_set()


def test_one_at_a_time(two: list[Agent]) -> None:
    set_agent(two[0])
    for agent in two:
        with pytest.raises(UsageError, match=r"^Current RPC agent is set!$"):
            set_agent(agent)
    assert current_agent() is two[0]


def test_an_agent_that_is_not_set_cannot_be_reset(two: list[Agent]) -> None:
    with pytest.raises(UsageError, match=r"^Current RPC agent is not set!$"):
        reset_agent()
    set_agent(two[1])
    reset_agent()
    set_agent(two[0])  # another one may follow
    assert current_agent() is two[0]
