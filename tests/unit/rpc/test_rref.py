"""References as their users see them, between agents of one process."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.errors import ReferenceFailed, UsageError
from holdfast.rpc import current
from holdfast.rpc.agent import Agent
from holdfast.rpc.rref import RRef
from tests.unit.rpc.world import agents

WITHIN_S = 20.0


@pytest.fixture
def three() -> Iterator[list[Agent]]:
    with agents(None, None, None) as made:
        current.set_agent(made[0])
        yield made
        current.reset_agent()


def nothing_left(made: list[Agent]) -> None:
    for agent in made:
        assert agent.holdings.wait_empty(Deadline.after(WITHIN_S).remaining), agent.info


def use(rref: RRef[Any]) -> Any:
    return rref.to_here()


def fail() -> None:
    raise KeyError("planted")


def test_where_it_is_and_what_it_is(three: list[Agent]) -> None:
    rref = three[0].remote("w1", operator.add, (1, 2))
    assert rref.to_here() == 3
    assert (rref.owner(), rref.owner_name()) == (three[1].info, "w1")
    assert not rref.is_owner()
    rref._get_future().wait(WITHIN_S)
    assert rref.confirmed_by_owner()
    assert str(rref).startswith("<RRef at w1 ")
    with pytest.raises(UsageError, match="lives at"):
        rref.local_value()
    del rref
    nothing_left(three)


def test_a_value_of_the_current_agent(three: list[Agent]) -> None:
    value = [1]
    rref = RRef(value)
    assert rref.is_owner()
    assert rref.confirmed_by_owner()
    assert rref.to_here() is value
    assert rref.local_value() is value
    with pytest.raises(UsageError, match="was not created by remote"):
        _ = rref._get_future()
    assert three[0].call("w2", use, (rref,)) == [1]
    del rref
    nothing_left(three)


def test_a_value_that_one_asks_oneself_for(three: list[Agent]) -> None:
    rref = three[0].remote("w0", operator.add, (1, 2))
    assert rref.is_owner()
    assert rref.local_value() == rref.to_here() == 3
    del rref
    nothing_left(three)


def test_methods_of_the_value(three: list[Agent]) -> None:
    rref = three[0].remote("w1", list, ((1, 2),))
    assert rref.rpc_sync().index(2) == 1
    assert rref.rpc_async().count(2).wait(WITHIN_S) == 1
    copied = rref.remote().copy()
    assert copied.to_here() == [1, 2]
    assert copied.owner_name() == "w1"
    with pytest.raises(AttributeError):
        rref.rpc_sync().__len__  # noqa: B018
    del rref, copied
    nothing_left(three)


def test_what_its_creation_raised(three: list[Agent]) -> None:
    rref = three[0].remote("w1", fail)
    for _ in range(2):
        with pytest.raises(KeyError, match="planted"):
            rref.to_here()
    del rref
    nothing_left(three)


def test_a_creation_that_did_not_arrive_is_refused_everywhere(three: list[Agent]) -> None:
    rref = three[0].remote("w1", operator.add, (1, 2))
    rref._get_future().wait(WITHIN_S)
    rref._creation = type(rref._get_future())()
    rref._creation.set_exception(RuntimeError("planted"))
    with pytest.raises(ReferenceFailed, match="RRef creation .* failed at .*planted"):
        rref.to_here()
    with pytest.raises(ReferenceFailed, match="RRef creation"):
        three[0].call("w2", use, (rref,))
    del rref
    nothing_left(three)


def test_it_travels_by_calls_only(three: list[Agent]) -> None:
    rref = RRef(1)
    for make in (copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match="cannot be copied"):
            make(rref)
    with pytest.raises(UsageError, match="part of a call"):
        pickle.dumps(rref)
