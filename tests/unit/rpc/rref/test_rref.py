"""References as their users see them, between agents of one process."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import pytest

from holdfast.clock import Deadline
from holdfast.errors import CallTimedOut, PeerLost, ReferenceFailed, TimeoutExpired, UsageError
from holdfast.rpc import current
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.client.transport import Link
from holdfast.rpc.rref.rref import RRef
from holdfast.rpc.wire.messages import Kind, Message
from tests.unit.rpc.world import Unchanged, agents
from tests.waiting import until

WITHIN_S = 30.0


@pytest.fixture
def three() -> Iterator[list[Agent]]:
    with agents(None, None, None) as made:
        current.set_agent(made[0])
        yield made
        current.reset_agent()


class HoldingBack(Unchanged):
    """Fails requests, or holds them back until they are released, though their time is up."""

    def __init__(self) -> None:
        self.fails: type[Exception] | None = None
        self.holds_back = False
        self.held: list[Callable[[], object]] = []

    def send(self, link: Link, message: Message) -> None:
        if message.kind is Kind.PYTHON_REMOTE_CALL:
            if self.fails is not None:
                raise self.fails("planted")
            if self.holds_back:
                self.held.append(lambda: link.transmit(message))
                return
        link.transmit(message)

    def release(self) -> None:
        for send in self.held:
            send()


class Slow(NamedTuple):
    agents: list[Agent]
    post: HoldingBack
    made: queue.SimpleQueue[int]


@pytest.fixture
def slow() -> Iterator[Slow]:
    transport = HoldingBack()
    with agents(transport, None, None) as made:
        yield Slow(made, transport, _made)


kept: list[Any] = []
_made: queue.SimpleQueue[int] = queue.SimpleQueue()
_may_end = threading.Event()


@pytest.fixture
def may_end() -> Iterator[threading.Event]:
    _may_end.clear()
    yield _may_end
    _may_end.set()


def wait_for(value: int) -> int:
    _may_end.wait(WITHIN_S)
    return value


def pass_on(rref: RRef[Any], more: int) -> Any:
    """Pass a reference round between w1, w2 and w0, and fetch it at last."""
    if not more:
        return rref.to_here()
    agent = cast("Agent", rref._rrefs.agent)
    return agent.call(more % 3, pass_on, (rref, more - 1))


def note(value: int) -> None:
    _made.put(value)


def keep(held: list[RRef[Any]]) -> None:
    kept.extend(held)


def note_end(rref: RRef[Any]) -> None:
    try:
        rref.local_value()
    except CallTimedOut:
        _made.put(-1)
        raise


def give_back(rref: RRef[Any]) -> RRef[Any]:
    return rref


def nothing_left(made: list[Agent]) -> None:
    for agent in made:
        assert agent.rrefs.wait_empty(Deadline.after(WITHIN_S).remaining), agent.info


def use(rref: RRef[Any]) -> Any:
    return rref.to_here()


def fail() -> None:
    raise KeyError("planted")


def test_a_reference_knows_its_owner_and_its_value(three: list[Agent]) -> None:
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


def test_a_method_waits_for_the_value_as_long_as_its_caller_does(
    three: list[Agent], may_end: threading.Event
) -> None:
    three[1].timeout_s = 0.001  # what is usual at the owner is no matter of the caller's
    rref = three[0].remote("w1", wait_for, (3,), timeout=0)
    asked = [
        rref.rpc_async(timeout=0).bit_length(),
        rref.remote(timeout=0).bit_length()._get_future(),
    ]
    for future in asked:
        with pytest.raises(TimeoutExpired, match="was not complete within"):
            future.wait(0.2)
    may_end.set()
    assert asked[0].wait(WITHIN_S) == 2
    assert asked[1].wait(WITHIN_S) is None
    del rref, asked, future
    nothing_left(three)


def test_within_a_call_the_value_is_waited_for_until_that_must_be_answered(
    three: list[Agent], may_end: threading.Event
) -> None:
    three[1].timeout_s = 0
    rref = three[0].remote("w1", wait_for, (3,), timeout=0)
    with pytest.raises(CallTimedOut):
        three[0].call("w1", note_end, (rref,), timeout=0.05)
    assert _made.get(timeout=WITHIN_S) == -1
    may_end.set()
    del rref
    nothing_left(three)


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_a_value_whose_creation_failed_is_not_kept_after_use(three: list[Agent], to: str) -> None:
    """The error of the creation stays as long as the value would: it must not know its users."""
    gc.disable()
    try:
        for use_it in (use, RRef.to_here, lambda rref: rref.rpc_sync().index(1)):
            rref = three[0].remote(to, fail)
            for _ in range(2):
                with pytest.raises(KeyError, match="planted") as caught:
                    use_it(rref)
                del caught
            with pytest.raises(KeyError, match="planted") as caught:
                three[0].call(to, use, (rref,))
            del rref, caught
            nothing_left(three)
    finally:
        gc.enable()


def test_fetching_raises_the_error_of_the_creation(three: list[Agent]) -> None:
    rref = three[0].remote("w1", fail)
    for _ in range(2):
        with pytest.raises(KeyError, match="planted"):
            rref.to_here()
    del rref
    nothing_left(three)


def refused_everywhere(three: list[Agent], rref: RRef[Any], text: str) -> None:
    """A failed creation raises where it is fetched, serialised, and passed to a call: at once."""
    with pytest.raises(ReferenceFailed, match=text):
        rref.to_here()
    with pytest.raises(ReferenceFailed, match=text):
        pickle.dumps(rref)
    for make in (three[0].call, three[0].call_async, three[0].remote):
        with pytest.raises(ReferenceFailed, match=text):
            make("w2", use, (rref,))
    with pytest.raises(ReferenceFailed, match=text):
        _ = rref.rpc_async().index(1)


def test_a_creation_that_could_not_be_sent_is_refused_everywhere(slow: Slow) -> None:
    slow.post.fails = PeerLost
    rref = slow.agents[0].remote("w1", operator.add, (1, 2))
    with pytest.raises(PeerLost, match="planted"):
        rref._get_future().wait(WITHIN_S)
    slow.post.fails = None
    refused_everywhere(slow.agents, rref, r"RRef creation via rpc.remote\(\) failed at .*planted")
    del rref
    nothing_left(slow.agents)


def test_a_creation_that_takes_too_long_fails_for_all_users_and_still_ends(
    three: list[Agent], may_end: threading.Event
) -> None:
    three[0].call_async("w1", operator.add, (1, 2)).wait(WITHIN_S)  # so that it is sent at once
    rref = three[0].remote("w1", wait_for, (3,), timeout=0.05)
    assert not rref.confirmed_by_owner()
    with pytest.raises(CallTimedOut, match="RPC ran for more than set timeout"):
        rref._get_future().wait(WITHIN_S)
    refused_everywhere(three, rref, r"RRef creation via rpc.remote\(\) at .* timed out")
    may_end.set()
    assert three[1].rrefs.value(rref._reference).wait(WITHIN_S) == 3
    assert three[1].rrefs.counts()["forks"] == 1
    del rref
    nothing_left(three)


@pytest.mark.parametrize("dropped_first", [True, False])
def test_a_creation_that_comes_too_late_is_made_and_counted_until_it_is_deleted(
    slow: Slow, dropped_first: bool
) -> None:
    one, two, _ = slow.agents
    assert one.call("w1", operator.add, (1, 2)) == 3  # opens the connection, which takes time
    slow.post.holds_back = True
    rref: RRef[Any] | None = one.remote("w1", note, (1,), timeout=0.05)
    assert rref is not None
    with pytest.raises(CallTimedOut):
        rref._get_future().wait(WITHIN_S)
    reference = rref._reference
    if dropped_first:
        rref = None
        nothing_left(slow.agents)
    slow.post.release()
    assert slow.made.get(timeout=WITHIN_S) == 1
    if rref is not None:
        assert two.rrefs.value(reference).wait(WITHIN_S) is None
        assert two.rrefs.counts()["forks"] == 1
        rref = None
    nothing_left(slow.agents)


def test_a_reference_is_confirmed_when_its_owner_has_answered(slow: Slow) -> None:
    slow.post.holds_back = True
    rref = slow.agents[0].remote("w1", operator.add, (1, 2))
    assert not rref.confirmed_by_owner()
    until(lambda: slow.post.held)
    slow.post.release()
    rref._get_future().wait(WITHIN_S)
    assert rref.confirmed_by_owner()
    del rref
    nothing_left(slow.agents)


def test_forks_of_forks(three: list[Agent]) -> None:
    rref = three[0].remote("w1", list, ((1,),))
    assert three[0].call("w2", pass_on, (rref, 5)) == [1]
    again = three[0].call("w2", give_back, (rref,))
    del rref
    assert again.to_here() == [1]
    assert again.owner_name() == "w1"
    del again
    nothing_left(three)


def test_agents_that_end_together_leave_nothing(three: list[Agent]) -> None:
    held = [three[0].remote("w1", list), RRef(1)]
    three[0].call("w2", keep, (held,))
    left: list[str] = []
    within = Deadline.after(WITHIN_S).remaining
    ends = [
        threading.Thread(target=lambda one=one: left.extend(one.rrefs.part(within)))
        for one in three
    ]
    for end in ends:
        end.start()
    for end in ends:
        end.join()
    assert left == []
    nothing_left(three)
    kept.clear()


def test_an_agent_that_ends_alone_names_the_workers_that_lose_its_values(
    three: list[Agent],
) -> None:
    held = three[0].remote("w1", list)
    held._get_future().wait(WITHIN_S)
    (leak,) = three[1].rrefs.part(lambda: 0.0)
    assert leak.startswith("a value that lives here (")
    assert leak.endswith(") is still held by w0")
    del held
    nothing_left(three)


def test_it_travels_by_calls_only(three: list[Agent]) -> None:
    rref = RRef(1)
    for make in (copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match="cannot be copied"):
            make(rref)
    with pytest.raises(UsageError, match="part of a call"):
        pickle.dumps(rref)


class Unreadable:
    """What cannot be read where it arrives."""

    def __reduce__(self) -> tuple[Any, ...]:
        return unreadable, ()


def unreadable() -> None:
    _may_end.wait(WITHIN_S)
    raise ImportError("of another version")


@pytest.mark.parametrize("to", ["w0", "w1"])
@pytest.mark.parametrize("retries", [None, RetryPolicy()])
@pytest.mark.parametrize("by_proxy", [True, False])
def test_an_early_caller_gets_the_error_of_a_creation_that_could_not_be_read(
    three: list[Agent],
    may_end: threading.Event,
    to: str,
    retries: RetryPolicy | None,
    by_proxy: bool,
) -> None:
    passed = three[0].remote("w1", operator.add, (1, 2))
    rref = three[0].remote(to, use, (passed, Unreadable()), retries=retries, timeout=0)
    if by_proxy:
        future = rref.rpc_async(timeout=0, retries=retries).index(1)
    else:  # a third worker does
        future = three[0].call_async("w2", use, (rref,), None, 0, retries)
    may_end.set()  # it was sent before the creation could be known to have failed
    with pytest.raises(ReferenceFailed, match="failed at .*ImportError: of another version"):
        future.wait(WITHIN_S)
    with pytest.raises(ImportError, match="of another version"):
        rref._get_future().wait(WITHIN_S)
    refused_everywhere(three, rref, r"RRef creation via rpc.remote\(\) failed at .*version")
    assert passed.to_here() == 3
    del rref, passed, future
    nothing_left(three)
