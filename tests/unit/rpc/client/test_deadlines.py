"""The deadline that calls inherit, and stepping out of it (DL-1)."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import signal
import threading
from collections.abc import Iterator
from contextvars import copy_context

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import CallTimedOut, UsageError
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.deadlines import (
    NO_DEADLINE,
    check_limit,
    deadline_here,
    detached,
    serve,
    served_here,
)
from holdfast.rpc.client.future import Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.wire.messages import NEVER
from tests.unit.rpc.world import agents
from tests.waiting import until

SOON = 20.0

ours: list[Agent] = []
gate, entered = threading.Event(), threading.Semaphore(0)
told: queue.SimpleQueue[CallTimedOut] = queue.SimpleQueue()


def test_outside_of_a_call_there_is_none() -> None:
    assert served_here() == NO_DEADLINE
    assert deadline_here() == NEVER


def test_a_detached_block_has_no_deadline() -> None:
    def within_a_call() -> None:
        serve((5.0, "w0"))
        with detached():
            assert served_here() == NO_DEADLINE
            with detached():
                pass
            assert deadline_here() == NEVER
        assert served_here() == (5.0, "w0")
        with pytest.raises(KeyError), detached():
            raise KeyError
        assert deadline_here() == 5.0

    copy_context().run(within_a_call)
    assert served_here() == NO_DEADLINE


@pytest.mark.parametrize("limit", [0.0, 3, 1e300])
def test_a_limit(limit: float) -> None:
    assert check_limit(limit) == (limit if limit < 1e9 else None)


@pytest.mark.parametrize("limit", [-1, float("nan"), "soon"])
def test_a_limit_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(UsageError, match="timeout .*: must be seconds"):
        check_limit(limit)


def test_a_callback_has_the_deadline_of_the_thread_that_added_it() -> None:
    """By FU-5: the thread that reads an answer may run a callback of another call."""
    future: Future[int] = Future()
    seen = future.then(lambda _: served_here())

    def complete_within_a_call() -> None:
        serve((5.0, "a stranger"))
        future.set_result(1)

    copy_context().run(complete_within_a_call)
    assert seen.value() == NO_DEADLINE


# Between agents.


def left() -> float:
    return deadline_here() - SYSTEM_CLOCK.monotonic()


def ask(apart: bool) -> float:
    if not apart:
        return float(ours[1].call("w0", left))
    with detached():
        return float(ours[1].call("w0", left))


async def ask_later(apart: bool) -> float:
    if not apart:
        return float(await ours[1].call_async("w0", left))
    with detached():
        await asyncio.sleep(0)
        return float(await ours[1].call_async("w0", left))


async def never() -> None:
    await asyncio.Event().wait()


def wait_for_it(how: str) -> None:
    """Make a call that ends with the call that runs here, and tell its error."""
    try:
        if how == "call":
            ours[1].call("w0", never)
        elif how == "post":
            ours[1].call_async("w0", never).wait()
        elif how == "retries":
            ours[1].call("w0", never, retries=RetryPolicy())
        else:
            ours[1].remote("w1", never).to_here()
    except CallTimedOut as late:
        told.put(late)


@pytest.mark.parametrize("job", [ask, ask_later])
def test_dl1_calls_within_a_call_inherit_its_deadline_unless_they_are_detached(job: object) -> None:
    with agents(None, None) as made:
        ours[:] = made
        assert callable(job)
        assert made[0].call("w1", job, (False,), timeout=5) <= 5
        assert 5 < made[0].call("w1", job, (True,), timeout=5) <= 20


@pytest.mark.parametrize("how", ["call", "post", "retries", "fetch"])
def test_a_call_that_ends_with_the_call_around_it_says_whose_deadline_it_was(how: str) -> None:
    with agents(None, None) as made:
        ours[:] = made
        with contextlib.suppress(CallTimedOut):  # both end at that moment
            made[0].call("w1", wait_for_it, (how,), timeout=0.3)
        late = told.get(timeout=SOON)
    assert late.deadline_of == "w0"
    assert "left of the call of w0 within which it was made; rpc.detached()" in str(late)


def test_a_call_that_ends_at_its_own_limit_says_so() -> None:
    with agents(None, None) as made, pytest.raises(CallTimedOut, match="set timeout") as late:
        made[0].call("w1", never, timeout=0.01)
    assert late.value.deadline_of == ""


def test_without_inheritance_calls_have_their_own_limits_alone() -> None:
    with agents(None, None) as made:
        ours[:] = made
        made[1]._inherits = False
        assert 5 < made[0].call("w1", ask, (False,), timeout=5) <= 20


# The limit of a synchronous call.


def wait_at_gate() -> None:
    entered.release()
    assert gate.wait(SOON)


@pytest.fixture
def _closed() -> Iterator[None]:
    gate.clear()
    yield
    gate.set()


@pytest.mark.usefixtures("_closed")
def test_pe6_signals_do_not_stretch_the_limit_of_a_call() -> None:
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    giving_up = threading.Timer(SOON, gate.set)
    giving_up.start()
    try:
        with agents(None, None) as made, pytest.raises(CallTimedOut):
            made[0].call("w1", wait_at_gate, timeout=0.3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        giving_up.cancel()
        giving_up.join()
        gate.set()


@pytest.mark.usefixtures("_closed")
def test_pe6_no_watch_while_nothing_is_under_way() -> None:
    now = SYSTEM_CLOCK.monotonic()
    while entered.acquire(blocking=False):
        pass
    with agents(None, None) as made:
        peer: Peer = made[0].peer("w1")
        for _ in range(2):
            made[0].call("w1", left)
            assert peer._watched
            assert False in [peer.expire(now) for _ in range(5)]
            assert not peer._watched
        waiting = threading.Thread(target=made[0].call, args=("w1", wait_at_gate))
        waiting.start()
        assert entered.acquire(timeout=SOON)
        until(lambda: peer._watched)
        assert all(peer.expire(now) for _ in range(9))
        gate.set()
        waiting.join()
