"""Answers between real agents: read, or not, and what becomes of references then (RD-1)."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.errors import CallTimedOut, Overloaded, PeerLost, UsageError
from holdfast.rpc import current
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.transport import Link
from holdfast.rpc.completion import ReplyFuture
from holdfast.rpc.rref.rref import RRef, make_rref
from holdfast.rpc.wire.messages import Kind, Message
from tests.unit.rpc.world import Unchanged, agents

WITHIN_S = 20.0


class Breaking(Unchanged):
    """Lets calls fail: before they are sent, or when their answers have come."""

    def __init__(self) -> None:
        # Makes errors: one that was raised keeps what was under way then.
        self.before: type[Exception] | None = None
        self.after: type[Exception] | None = None
        self._calls: set[int] = set()

    def send(self, link: Link, message: Message) -> None:
        if message.kind is Kind.PYTHON_CALL:
            self._calls.add(message.call)
            if self.before is not None:
                raise self.before("planted")
        link.transmit(message)

    def receive(self, link: Link, message: Message) -> None:
        breaks = self.after is not None and message.call in self._calls
        link.complete(message.call, self.after("planted") if breaks and self.after else message)


class World:
    def __init__(self, made: list[Agent], transport: Breaking) -> None:
        self.agents = made
        self.one, self.two, _ = made
        self.transport = transport

    def nothing_left(self) -> None:
        for agent in self.agents:
            assert agent.rrefs.wait_empty(Deadline.after(WITHIN_S).remaining), (
                agent.info,
                agent.rrefs.counts(),
            )


@pytest.fixture
def world() -> Iterator[World]:
    transport = Breaking()
    with agents(transport, None, None) as made:
        current.set_agent(made[0])
        yield World(made, transport)
        current.reset_agent()
    begin.set()


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Nothing waits for the garbage collector, which comes when it likes."""
    gc.disable()
    yield
    gc.enable()


begin = threading.Event()
kept: list[Any] = []


@pytest.fixture
def closed() -> Iterator[None]:
    begin.clear()
    yield
    begin.set()


def make(agent: Agent) -> RRef[str]:
    return make_rref(
        agent.rrefs, agent.rrefs.own("theirs"), agent.info, agent.rrefs.incarnation, None
    )


owners: dict[str, Agent] = {}


@pytest.fixture(autouse=True)
def at_hand(world: World) -> Iterator[None]:
    owners["two"] = world.two
    yield
    owners.clear()
    kept.clear()


def give(*_: Any) -> RRef[str]:
    """Return a reference to a value of the callee."""
    return make(owners["two"])


def give_late(*_: Any) -> RRef[str]:
    begin.wait(WITHIN_S)
    return give()


def pass_on(rref: RRef[str]) -> list[RRef[str]]:
    """Return a reference to the value of another worker."""
    return [rref]


def nothing(*_: Any) -> None:
    pass


def fail(*_: Any) -> None:
    raise KeyError("on purpose")


class Odd:
    """Cannot be loaded; what comes before it can."""

    def __reduce__(self) -> Any:
        return fail, ()


def give_odd() -> Any:
    return [give(), Odd(), give()]


def call(world: World, how: str, *args: Any, **more: Any) -> Any:
    if how == "sync":
        return world.one.call("w1", *args, **more)
    return world.one.call_async("w1", *args, **more).wait(WITHIN_S)


HOW = pytest.mark.parametrize("how", ["sync", "async"])


@HOW
def test_references_of_an_answered_call_are_dropped_by_the_callee(world: World, how: str) -> None:
    (back,) = call(world, how, pass_on, (RRef("mine"),))
    assert back.to_here() == "mine"
    assert call(world, how, give).to_here() == "theirs"
    del back
    world.nothing_left()


@HOW
def test_a_reference_that_goes_to_its_owner_costs_no_other_message(world: World, how: str) -> None:
    rref = call(world, how, give)
    sent = world.two.metrics()["agent.client_calls"]
    assert call(world, how, pass_on, (rref,))[0].to_here() == "theirs"
    assert world.one.rrefs.counts()["pending_children"] == 0
    assert world.two.metrics()["agent.client_calls"] == sent
    del rref
    world.nothing_left()


@HOW
@pytest.mark.parametrize(
    "error", [PeerLost, Overloaded, UsageError], ids=lambda error: error.__name__
)
def test_references_of_a_message_that_was_not_sent_are_taken_back(
    world: World, how: str, error: type[Exception]
) -> None:
    world.transport.before = error
    with pytest.raises(error, match="planted"):
        call(world, how, nothing, (RRef("mine"),))
    world.nothing_left()


@HOW
def test_references_sent_to_a_callee_that_refuses_come_back(world: World, how: str) -> None:
    rref = RRef("mine")
    with pytest.raises(KeyError):
        call(world, how, nothing, (Odd(), rref))  # the callee never gets as far as the reference
    del rref
    world.nothing_left()


@HOW
def test_references_in_a_lost_reply_are_released(world: World, how: str) -> None:
    world.transport.after = PeerLost
    for function in (give, pass_on):
        with pytest.raises(PeerLost, match="planted"):
            call(world, how, function, (RRef("mine"),))
    world.nothing_left()


@HOW
@pytest.mark.parametrize("asked_first", [True, False])
@pytest.mark.usefixtures("closed")
def test_references_in_a_late_reply_are_released(world: World, how: str, asked_first: bool) -> None:
    with pytest.raises(CallTimedOut):
        call(world, how, give_late, (RRef("mine"),), timeout=0.05)
    if asked_first:  # before there is anything to be given
        assert world.one.rrefs.wait_answered(Deadline.after(WITHIN_S).remaining)
    begin.set()
    world.nothing_left()


@HOW
def test_references_in_a_reply_that_cannot_be_read_are_released(world: World, how: str) -> None:
    with pytest.raises(KeyError):
        call(world, how, give_odd)
    world.nothing_left()


def test_a_creation_that_cannot_be_requested_leaves_no_reference(world: World) -> None:
    with pytest.raises(UsageError, match="cannot be pickled"):
        world.one.remote("w1", nothing, (threading.Lock(),))
    world.nothing_left()


class Carries:
    """What carries a call, and is told that it is given up."""

    def __init__(self, told: list[object]) -> None:
        self._told = told

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        raise AssertionError("no thread waits")

    def give_up(self, call: int) -> None:
        self._told.append(call)


def test_rd2_a_call_is_given_up_before_its_cancellation_is_seen(world: World) -> None:
    told: list[object] = []
    for chained in (False, True):
        future = ReplyFuture()
        peer = world.one.peer("w1")
        future.asked = (world.one, peer, Message(Kind.PYTHON_CALL, 7))
        future.driver = Carries(told)
        waited = future.then(lambda done: done.value()) if chained else future
        waited.add_done_callback(lambda done: told.append(done.cancelled()))
        assert waited.cancel()
        assert not waited.cancel()
        assert future.cancelled()
        assert told[:2] == [7, True]
        told.clear()
