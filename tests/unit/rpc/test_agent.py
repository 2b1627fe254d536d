"""Agents in one process: calls, their failures, their limits, and the end of an agent."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn, cast

import pytest

from holdfast.errors import CallTimedOut, Overloaded, PeerLost, StoreUnavailable, UsageError
from holdfast.net.auth import derive_key
from holdfast.rpc import current
from holdfast.rpc.agent import Agent, Target
from holdfast.rpc.client import peer as peers_module
from holdfast.rpc.client.calls import CALLS_MAX
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.future import Future, wait_all
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.client.transport import Link
from holdfast.rpc.rref.rref import RRef
from holdfast.rpc.values.errors import NOTES_MAX
from holdfast.rpc.wire.memory import POOL_BYTES
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo
from tests.unit.rpc.world import Unchanged, agents, forked
from tests.waiting import until

KEY = derive_key(b"a secret that only workers know", "rpc")
SOON = 20.0
FAST = RetryPolicy(max_retries=3, delay_s=0.001, backoff=1.0)

gate = threading.Event()
gone = threading.Semaphore(0)
ran: list[object] = []


class Table:
    """The addresses of workers."""

    def __init__(self) -> None:
        self.known: dict[Target, Contact] = {}

    def find(self, target: Target) -> Contact:
        return self.known[target]

    def find_incarnation(self, incarnation: str) -> Contact:
        for contact in self.known.values():
            if contact.incarnation == incarnation:
                return contact
        raise PeerLost("it is gone", incarnation=incarnation)


class Rough(Unchanged):
    """Breaks what it carries as often as it is told to."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.breaks: list[Exception] = []
        self.after = False
        self.before: Callable[[], None] = lambda: None
        self.closed = False
        self._broken: dict[int, Exception] = {}  # by call: when its reply has come

    def send(self, link: Link, message: Message) -> None:
        if message.kind is Kind.RREF_UNREAD:  # what follows on a call that failed
            link.transmit(message)
            return
        self.sent.append(message)
        if self.breaks:
            error = self.breaks.pop(0)
            if self.after:
                self._broken[message.call] = error
            else:
                self.before()
                link.complete(message.call, error)
                return
        link.transmit(message)

    def receive(self, link: Link, message: Message) -> None:
        link.complete(message.call, self._broken.pop(message.call, message))

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.table = Table()
        self.rough = Rough()
        self.one = Agent(WorkerInfo("one", 1), self.table, KEY, transport=self.rough)
        self.two = Agent(WorkerInfo("two", 2), self.table, KEY)
        for agent in (self.one, self.two):
            agent.start()
            assert agent.contact is not None
            self.table.known[agent.info.name] = agent.contact
            self.table.known[agent.info.id] = agent.contact

    def close(self) -> None:
        gate.set()
        for agent in (self.one, self.two):
            agent.close()


@pytest.fixture
def world() -> Iterator[World]:
    gate.clear()
    ran.clear()
    made = World()
    try:
        yield made
    finally:
        made.close()


def add(one: int, two: int = 0) -> int:
    ran.append((one, two))
    return one + two


def wait(name: str = "") -> str:
    ran.append(name)
    assert gate.wait(SOON)
    return name


def test_a_call_that_found_no_connection_in_time_says_so() -> None:
    with agents(None, None) as (agent, other), socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"\0holdfast-test-{os.urandom(8).hex()}")
        silent.listen()  # and never accepts
        assert other.contact is not None
        where, table = silent.getsockname().decode(), cast("Any", agent._directory)
        table.contacts[1] = replace(other.contact, unix=where, incarnation="frozen")
        for call in (agent.call, lambda *args, **how: agent.call_async(*args, **how).wait()):
            with pytest.raises(CallTimedOut, match="with an error: no connection was opened"):
                call("w1", abs, (1,), timeout=0.1)


def test_plain_values_meet_no_counter_of_references(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    for agent in (world.one, world.two):
        for name in ("pack", "unpack"):
            real = getattr(agent.rrefs, name)

            def note(*args: Any, name: str = name, real: Any = real) -> Any:
                counted.append(name)
                return real(*args)

            monkeypatch.setattr(agent.rrefs, name, note)
    for call in (world.one.call, lambda *args: world.one.call_async(*args).wait(SOON)):
        assert call("two", add, (1, 2)) == 3
    assert counted == []
    assert world.one.call("two", sorted, ([2, 1],)) == [1, 2]
    assert set(counted) == {"pack"}  # a list may have references in it; this one has none


def test_calls_by_name_and_number_and_to_oneself(world: World) -> None:
    for target in ("two", 2, "one", 1):
        assert world.one.call(target, add, (1,), {"two": 2}) == 3
        assert world.one.call_async(target, add, (1, 2)).wait(SOON) == 3
    assert world.two.call("one", add, (1, 2)) == 3
    assert world.one.find("two").info == world.two.info
    assert world.one.transport is world.rough


def test_a_call_to_a_worker_that_is_gone_fails_by_its_future(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(target: object) -> NoReturn:
        raise PeerLost("Connection closed by peer (it is gone)", peer="three")

    monkeypatch.setattr(world.one._directory, "find", gone)
    future = world.one.call_async("three", add, (1, 2))
    assert isinstance(future.exception(), PeerLost)
    for call in (world.one.call, world.one.remote):
        with pytest.raises(PeerLost):
            call("three", add, (1, 2))


def test_a_value_that_is_not_callable_is_refused_and_leaves_no_reference(world: World) -> None:
    name: Any = "operator:add"
    for call in (world.one.call, world.one.call_async, world.one.remote):
        with pytest.raises(UsageError, match="func 'operator:add': must be something"):
            call("two", name, (1, 2))
    assert not any(world.one.rrefs.counts().values())


def test_an_agent_must_be_started() -> None:
    agent = Agent(WorkerInfo("x", 0), Table(), KEY)
    with pytest.raises(UsageError, match="has not been started"):
        agent._peer_of(Contact(WorkerInfo("y", 1), "life", "", "", ""))
    agent.close()


def test_the_limit_of_a_call_is_its_own_or_the_default(world: World) -> None:
    world.one.timeout_s = 0.03
    for timeout in (None, 0.02):
        with pytest.raises(CallTimedOut, match="RPC ran for more than set timeout"):
            world.one.call("two", wait, timeout=timeout)
        with pytest.raises(CallTimedOut, match="RPC ran for more than set timeout"):
            world.one.call_async("two", wait, timeout=timeout).wait()
    budgets = [message.budget_ms for message in world.rough.sent]
    assert all(0 < budget <= 30 for budget in budgets)
    opening = threading.Timer(0.1, gate.set)
    opening.start()
    assert world.one.call("two", wait, ("x",), timeout=0) == "x"
    opening.join()
    assert world.rough.sent[-1].budget_ms == 0
    for odd in (-1, float("nan"), "soon", True):
        with pytest.raises(UsageError, match="timeout"):
            world.one.call("two", add, (1,), timeout=odd)  # type: ignore[arg-type]
    assert world.one.call("two", add, (1,), timeout=1e300) == 1


def test_too_many_calls_are_refused_and_no_caller_hangs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.two.call_async("one", add, (1,)).wait()
    pipe = world.two.peer("one")._pipe
    assert pipe is not None
    monkeypatch.setattr(pipe._calls, "_calls_max", 3)
    waiting = [world.two.call_async("one", wait, (str(n),)) for n in range(3)]
    with pytest.raises(Overloaded, match="3 calls"):
        world.two.call_async("one", add, (1,)).wait()
    assert world.two.call("one", add, (1,)) == 1  # others go another way
    gate.set()
    assert wait_all(waiting) == ["0", "1", "2"]
    assert world.two.call_async("one", add, (1,)).wait() == 1
    assert CALLS_MAX >= 10_000


# Sent again.


def nest(depth: int) -> int:
    return 1 + int(current.current_agent().call("two", nest, (depth - 1,))) if depth else 0


def test_calls_that_nest_too_deeply_end_in_overloaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves RS-3: the error passes every worker of the chain, and does not grow for ever."""
    monkeypatch.setattr(peers_module, "EXCHANGES_MAX", 40)
    current.set_agent(world.two)
    try:
        with pytest.raises(Overloaded, match="40 calls to it are under way") as refused:
            world.two.call("two", nest, (100,))
        assert world.two.call("two", nest, (20,)) == 20
    finally:
        current.reset_agent()
    assert len(refused.value.__notes__) == NOTES_MAX


def test_a_thread_with_a_full_stack_leaves_other_answers_to_other_threads(world: World) -> None:
    """Or what follows on them would fail, since there is no room."""

    def dive(depth: int) -> int:
        return dive(depth - 1) if depth else 7

    def wait_below(depth: int) -> None:
        if depth:
            wait_below(depth - 1)
        else:
            assert world.one.call_async("two", wait).wait(SOON) == ""

    follows = world.one.call_async("two", add, (1, 2)).then(lambda _: dive(450))
    opening = threading.Timer(0.05, gate.set)
    opening.start()
    wait_below(600)
    opening.join()
    assert follows.wait(SOON) == 7


class Block(bytearray):
    """Is sent from where it lies, and tells when it is gone."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return bytearray, (pickle.PickleBuffer(self),)


def give_block(size: int) -> Block:
    block = Block(size)
    weakref.finalize(block, gone.release).atexit = False
    return block


def take_memory(memory: memoryview) -> int:
    weakref.finalize(memory.obj, gone.release).atexit = False
    return memory.nbytes


@pytest.mark.parametrize("how", ["call", "call_async", "remote"])
@pytest.mark.parametrize("size", [100_000, POOL_BYTES])
def test_an_idle_callee_keeps_neither_a_request_nor_an_answer(
    world: World, how: str, size: int
) -> None:
    while gone.acquire(blocking=False):
        pass
    if how == "remote":
        assert len(world.one.remote("two", give_block, (size,)).to_here()) == size
    elif how == "call":
        assert len(world.one.call("two", give_block, (size,))) == size
    else:
        assert len(world.one.call_async("two", give_block, (size,)).wait(SOON)) == size
    assert gone.acquire(timeout=SOON)
    if size == POOL_BYTES:  # the memory of smaller ones cannot be watched
        got = world.one.call_async("two", take_memory, (memoryview(bytes(size)),))
        assert got.wait(SOON) == world.one.call("two", take_memory, (memoryview(bytes(size)),))
        assert gone.acquire(timeout=SOON)
        assert gone.acquire(timeout=SOON)


@pytest.fixture(params=["call", "call_async", "remote"])
def insist(world: World, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Call in one of the three ways, and return the value."""

    def way(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        outcome = getattr(world.one, request.param)("two", function, args, **more)
        if isinstance(outcome, RRef):
            outcome._get_future().wait(SOON)
            return outcome.to_here()
        return outcome.wait(SOON) if isinstance(outcome, Future) else outcome

    return way


def test_a_call_is_sent_again_when_the_connection_breaks(
    world: World, insist: Callable[..., Any]
) -> None:
    world.rough.breaks = [PeerLost("broken")] * 3
    assert insist(add, 1, retries=FAST) == 1
    sent = [message for message in world.rough.sent if message.once]
    assert len({message.call for message in sent}) == 1
    assert len(sent) == 4
    assert ran == [(1, 0)]


def test_a_retry_policy_of_another_type_is_refused(
    world: World, insist: Callable[..., Any]
) -> None:
    for odd in (0, 3, False, "often"):
        with pytest.raises(UsageError, match=f"retries {odd!r}: must be a RetryPolicy, or None"):
            insist(add, 1, retries=odd)
    until(lambda: not any(world.one.rrefs.counts().values()))
    assert not any(message.once for message in world.rough.sent)
    assert ran == []


def test_a_call_that_ran_before_the_connection_broke_does_not_run_again(
    world: World, insist: Callable[..., Any]
) -> None:
    world.rough.after = True
    world.rough.breaks = [PeerLost("broken")] * 3
    assert insist(add, 1, retries=FAST) == 1
    assert ran == [(1, 0)]
    until(lambda: world.two.metrics()["agent.receipts_kept"] == "0")


def test_a_retried_call_that_still_runs_gets_its_reply_when_it_ends(world: World) -> None:
    futures = [world.one.call_async("two", wait, (str(n),), retries=FAST) for n in range(3)]
    until(lambda: len(ran) == 3)
    world.one.peer("two").reset("on purpose")
    until(lambda: len(world.rough.sent) == 6)
    gate.set()
    assert wait_all(futures) == ["0", "1", "2"]
    assert sorted(map(str, ran)) == ["0", "1", "2"]


def test_a_policy_gives_up_and_says_so(world: World, insist: Callable[..., Any]) -> None:
    world.rough.breaks = [PeerLost("broken")] * 4
    with pytest.raises(PeerLost, match=r"number of max retries \(3\)\. broken"):
        insist(add, 1, retries=FAST)
    assert ran == []


def test_retries_never_outlive_the_deadline(world: World, insist: Callable[..., Any]) -> None:
    world.rough.breaks = [PeerLost("broken")]
    slow = RetryPolicy(max_retries=3, delay_s=60.0)
    with pytest.raises(CallTimedOut, match=r"RPC ran for more than .*try 1 failed \(broken\)"):
        insist(add, 1, timeout=SOON, retries=slow)  # it is not waited for


def test_the_error_of_a_timeout_names_the_given_timeout(world: World) -> None:
    for number in range(1, 2000):  # not all of them are what they seem, as fractions of two
        assert world.one.deadline(number / 1000)[1] == number


def test_a_try_may_be_given_up_before_the_call_is(world: World) -> None:
    quick = RetryPolicy(max_retries=1000, delay_s=0.0, backoff=1.0, try_s=0.02)
    future = world.one.call_async("two", wait, ("x",), retries=quick)
    until(lambda: len(world.rough.sent) >= 3)
    gate.set()
    assert future.wait(SOON) == "x"
    assert ran == ["x"]


def test_another_incarnation_never_runs_a_call_that_the_old_one_may_have_run(
    world: World, insist: Callable[..., Any]
) -> None:
    contact = world.table.known["two"]
    world.rough.breaks = [PeerLost("broken")]
    world.rough.before = lambda: world.one.lost(contact)  # its next life has the same name
    with pytest.raises(PeerLost, match="it is gone"):
        insist(add, 1, retries=FAST)
    assert ran == []


def test_a_call_between_two_tries_fails_when_the_worker_is_gone(world: World) -> None:
    world.rough.breaks = [PeerLost("broken")]
    slow = RetryPolicy(delay_s=1000.0)
    future = world.one.call_async("two", add, (1,), timeout=0, retries=slow)
    assert not future.done()
    world.one.lost(world.table.known["two"])
    with pytest.raises(PeerLost, match="it is gone"):
        future.wait(SOON)


def test_closing_ends_calls_that_wait_for_their_next_try(world: World) -> None:
    world.rough.breaks = [PeerLost("broken")] * 2
    slow = RetryPolicy(delay_s=1000.0)
    heard: list[str] = []

    def call() -> None:
        try:
            world.one.call("two", add, (1,), timeout=0, retries=slow)
        except PeerLost as error:
            heard.append(str(error))

    future = world.one.call_async("two", add, (1,), timeout=0, retries=slow)
    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: len(world.rough.sent) == 2)
    world.one.close()
    thread.join(SOON)
    with pytest.raises(PeerLost) as caught:
        future.wait(SOON)
    text = "RPC Agent is no longer running on Node 1. Cannot retry message."
    assert [*heard, str(caught.value)] == [text, text]
    assert ran == []


def test_a_callback_on_the_schedulers_thread_may_call_with_retries(world: World) -> None:
    world.rough.breaks = [PeerLost("broken")] * 6
    heard: list[int] = []

    def call(_: Future[int]) -> None:
        # Its own retries would need the thread that runs this.
        heard.append(world.one.call("two", add, (1,), retries=FAST))

    world.one.call_async("two", add, (0,), retries=FAST).add_done_callback(call)
    until(lambda: bool(heard))
    assert heard == [1]
    assert ran == [(1, 0)]


def test_a_call_that_is_cancelled_is_not_sent_again(world: World) -> None:
    world.rough.breaks = [PeerLost("broken")]
    slow = RetryPolicy(delay_s=1000.0)
    future = world.one.call_async("two", add, (1,), timeout=0, retries=slow)
    assert future.cancel()
    until(lambda: world.one.metrics()["agent.retries_pending"] == "0")
    assert ran == []


def test_a_creation_that_is_sent_again_is_counted_once(world: World) -> None:
    world.rough.after = True
    world.rough.breaks = [PeerLost("broken")] * 3
    rref = world.one.remote("two", add, (1,), retries=FAST)
    rref._get_future().wait(SOON)
    assert rref.to_here() == 1
    until(rref.confirmed_by_owner)
    assert world.two.rrefs.counts()["owners"] == world.two.rrefs.counts()["forks"] == 1
    del rref
    until(lambda: not any(world.two.rrefs.counts().values()))
    assert ran == [(1, 0)]


def test_other_kinds_can_be_sent_until_they_are_answered(world: World) -> None:
    life = world.table.known["two"].incarnation
    kind = Kind.CLEANUP_AUTOGRAD_CONTEXT_REQ
    world.two._dispatcher.add_handler(kind, lambda caller, request: add(request))
    world.rough.breaks = [PeerLost("broken")] * 3
    assert world.one.request(life, kind, 5, None, FAST).wait(SOON) == 5
    with pytest.raises(PeerLost, match="it is gone"):
        world.one.request("another life", kind, 5, None, FAST).wait(SOON)


def test_without_retries_nothing_is_sent_again(world: World) -> None:
    world.rough.breaks = [PeerLost("broken")]
    with pytest.raises(PeerLost, match="broken"):
        world.one.call("two", add, (1,))
    world.rough.breaks = [PeerLost("broken")]
    with pytest.raises(PeerLost, match="broken"):
        world.one.call_async("two", add, (1,)).wait()
    world.rough.breaks = [TimeoutError()]
    with pytest.raises(CallTimedOut):
        world.one.call_async("two", add, (1,)).wait()
    assert len(world.rough.sent) == 3


def test_numbers_that_are_open_are_never_acknowledged(world: World) -> None:
    # Many at once: none must be told that it was answered long ago.
    def work() -> None:
        futures = [world.one.call_async("two", add, (n,), retries=FAST) for n in range(50)]
        done.extend(world.one.call("two", add, (n,), retries=FAST) for n in range(50))
        done.extend(wait_all(futures))

    done: list[int] = []
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 600
    assert world.one.metrics()["agent.retries_pending"] == "0"
    until(lambda: world.two.metrics()["agent.receipts_kept"] == "0")


# The end.


def test_a_lost_worker_is_reported_and_not_served_again(world: World) -> None:
    contact = world.table.known["two"]
    future = world.one.call_async("two", wait)
    assert world.two.call("one", add, (1,)) == 1
    until(lambda: bool(ran))
    world.one.lost(contact)
    with pytest.raises(PeerLost, match="Connection closed by peer"):
        future.wait(SOON)
    with pytest.raises(PeerLost, match="given up"):
        world.two.call("one", add, (1,))
    world.one.lost(contact)  # again
    assert not world.one.knows("somebody")
    assert world.one.knows(contact.incarnation)


def test_a_worker_that_is_lost_during_its_lookup_is_not_remembered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = replace(world.table.known["two"], incarnation="an earlier life")

    def find(target: Target) -> Contact:
        monkeypatch.undo()
        world.one.lost(old)  # before its peer is made
        return old

    monkeypatch.setattr(world.table, "find", find)
    with pytest.raises(PeerLost, match="it is gone") as caught:
        world.one.call("two", add, (1,))
    assert caught.value.incarnation == "an earlier life"
    assert world.one.call("two", add, (1,)) == 1


def test_a_worker_of_unknown_state_is_not_taken_for_dead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(incarnation: str) -> Contact:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(world.table, "find_incarnation", silent)
    assert world.two.knows("somebody")


def test_closing_ends_calls_that_are_under_way(world: World) -> None:
    futures = [world.one.call_async("two", wait, (str(n),)) for n in range(3)]
    heard: list[Future[str]] = []
    futures[0].add_done_callback(heard.append)
    failed: list[BaseException] = []

    def call() -> None:
        try:
            world.one.call("two", wait, ("sync",))
        except PeerLost as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: len(ran) == 4)
    world.one.close()
    thread.join()
    assert len(failed) == 1
    for future in futures:
        with pytest.raises(PeerLost, match="shut down"):
            future.wait(SOON)
    assert heard == futures[:1]
    assert world.rough.closed
    for target in ("two", "one"):
        with pytest.raises(PeerLost, match="shut down"):
            world.one.call(target, add, (1,))
        with pytest.raises(PeerLost, match="shut down"):
            world.one.call_async(target, add, (1,)).wait()
    with pytest.raises(PeerLost):
        world.two.call("one", add, (1,))


def test_an_agent_may_be_closed_by_a_callback_of_its_own(world: World) -> None:
    closed = threading.Event()

    def close(_: Future[int]) -> None:
        world.one.close()
        closed.set()

    world.one.call_async("two", add, (1,)).add_done_callback(close)
    assert closed.wait(SOON)


def test_a_call_can_be_of_another_kind(world: World) -> None:
    seen: list[Any] = []

    def hear(caller: Any, request: Any) -> Any:
        seen.append((caller.name, request))

    world.two.add_handler(Kind.SCRIPT_CALL, hear)
    call = world.one.call_async("two", add, (1, 2), kind=Kind.SCRIPT_CALL)
    call.wait(SOON)
    assert seen == [("one", (f"{__name__}:add", (1, 2), None))]
    made = world.one.remote("two", add, (3, 4), kind=Kind.SCRIPT_REMOTE_CALL)
    assert made.to_here() == 7


def test_requests_of_other_kinds_go_to_an_incarnation(world: World) -> None:
    life = world.table.known["two"].incarnation
    world.two.add_handler(Kind.SCRIPT_CALL, lambda caller, request: request * 2)
    assert world.one.request(life, Kind.SCRIPT_CALL, 4, None).wait(SOON) == 8
    with pytest.raises(PeerLost):
        _ = world.one.request("another life", Kind.SCRIPT_CALL, 4, None)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_no_agent(world: World) -> None:
    mine = world.one.remote("two", add, (1,))
    assert mine.to_here() == 1
    current.set_agent(world.one)

    def child() -> None:
        assert not current.is_agent_set()
        acts: list[Callable[[], object]] = [lambda: world.one.call("two", add), mine.to_here]
        for act in acts:
            with pytest.raises(PeerLost, match="has been shut down"):
                act()
        world.one.close()

    try:
        with forked(child):
            assert world.one.call("two", add, (2,)) == 2
            assert world.two.call("one", add, (3,)) == 3
            assert world.one.call_async("two", add, (4,)).wait(SOON) == 4
    finally:
        current.reset_agent()
