"""Futures: completed once, heard once, waited for by driving or by blocking."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.errors import CallCancelled, TimeoutExpired, UsageError
from holdfast.rpc.client import future as future_module
from holdfast.rpc.client.future import ASYNC_MARK, Future, collect_all, expected, wait_all

SOON = 30.0


class Drive:
    """A driver that does something at each of its turns."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.acts = list(acts)

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        while not done() and self.acts:
            self.acts.pop(0)()


def after(act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.02, act)
    timer.start()
    return timer


def test_a_value_is_there_for_every_waiter() -> None:
    future: Future[int] = Future()
    assert not future.done()
    assert repr(future) == "<Future open>"
    with pytest.raises(UsageError, match="not complete"):
        future.value()
    future.set_result(5)
    assert future.done()
    assert future.wait() == future.value() == future.result(0) == 5
    assert future.exception() is None
    assert repr(future) == "<Future done>"


def test_an_error_is_raised_for_every_waiter() -> None:
    future: Future[int] = Future()
    error = KeyError("x")
    future.set_exception(error)
    for ask in (future.wait, future.value):
        with pytest.raises(KeyError):
            ask()
    assert future.exception() is error
    assert repr(future) == "<Future failed>"


def test_fu1_a_future_is_completed_once() -> None:
    future: Future[int] = Future()
    future.set_result(1)
    with pytest.raises(UsageError, match="complete already"):
        future.set_result(2)
    with pytest.raises(UsageError, match="complete already"):
        future.set_exception(ValueError())
    assert future.value() == 1
    with pytest.raises(UsageError, match="must be an exception"):
        Future[int]().set_exception("no")  # type: ignore[arg-type]


def test_fu1_of_many_that_complete_it_one_succeeds() -> None:
    for _ in range(50):
        future: Future[int] = Future()
        refused: list[int] = []
        barrier = threading.Barrier(4)

        def complete(
            number: int,
            future: Future[int] = future,
            refused: list[int] = refused,
            barrier: threading.Barrier = barrier,
        ) -> None:
            barrier.wait()
            try:
                future.set_result(number)
            except UsageError:
                refused.append(number)

        threads = [threading.Thread(target=complete, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted([*refused, future.value()]) == [0, 1, 2, 3]


def test_waiting_blocks_until_the_future_is_completed() -> None:
    future: Future[str] = Future()
    waiters = [threading.Thread(target=future.wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    timer = after(lambda: future.set_result("here"))
    assert future.wait(SOON) == "here"
    for waiter in (*waiters, timer):
        waiter.join()


def test_waiting_ends_at_its_limit() -> None:
    future: Future[int] = Future()
    with pytest.raises(TimeoutExpired, match="within 0.01 s"):
        future.wait(0.01)
    with pytest.raises(TimeoutExpired):
        future.exception(0)
    with pytest.raises(UsageError):
        future.wait(-1)


def test_a_waiting_thread_drives_the_call() -> None:
    future: Future[int] = Future()
    future.driver = Drive(lambda: None, lambda: future.set_result(3))
    assert future.wait(SOON) == 3


def test_a_driver_that_gives_up_leaves_it_to_others() -> None:
    future: Future[int] = Future(Drive())
    timer = after(lambda: future.set_result(3))
    assert future.wait(SOON) == 3
    timer.join()


def test_fu2_callbacks_are_called_once_and_late_ones_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    future: Future[int] = Future()
    heard: list[object] = []

    def bad(_: Future[int]) -> None:
        raise ValueError("a bug")

    def leave(_: Future[int]) -> None:
        raise SystemExit

    def cancelled(_: Future[int]) -> None:
        raise asyncio.CancelledError

    for callback in (heard.append, bad, leave, cancelled, lambda done: heard.append(done.value())):
        future.add_done_callback(callback)
    assert heard == []
    future.set_result(1)
    assert heard == [future, 1]
    future.add_done_callback(heard.append)
    assert heard == [future, 1, future]
    assert "a bug" in caplog.text


def test_then_gives_the_future_of_what_the_callback_returns() -> None:
    future: Future[int] = Future()
    doubled = future.then(lambda done: done.value() * 2)
    failed = doubled.then(lambda done: 1 // (done.value() - 10))
    future.set_result(5)
    assert doubled.value() == 10
    assert isinstance(failed.exception(), ZeroDivisionError)
    assert future.then(lambda done: done.value()).value() == 5
    broken: Future[int] = Future()
    following = broken.then(lambda done: done.value())
    broken.set_exception(KeyError("x"))
    assert isinstance(following.exception(), KeyError)


def test_a_following_future_is_driven_like_the_first() -> None:
    future: Future[int] = Future()
    future.driver = Drive(lambda: future.set_result(1))
    assert future.then(lambda done: done.value() + 1).wait(SOON) == 2


def test_a_future_can_be_awaited() -> None:
    async def use(future: Future[int]) -> int:
        return await future + await future

    future: Future[int] = Future()
    timer = after(lambda: future.set_result(4))
    assert asyncio.run(use(future)) == 8
    timer.join()
    failed: Future[int] = Future()
    failed.set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        asyncio.run(use(failed))


def test_cancelling_completes_a_future_and_stops_its_work() -> None:
    future: Future[int] = Future()
    told: list[str] = []
    future._stop = lambda: told.append("stop")
    future.add_done_callback(lambda done: told.append(repr(done)))
    assert not future.cancelled()
    assert future.cancel()
    assert told == ["<Future failed>", "stop"]
    assert future.done()
    assert future.cancelled()
    with pytest.raises(CallCancelled, match="was cancelled"):
        future.wait()
    with pytest.raises(UsageError, match="complete already"):
        future.set_result(1)
    assert not future.cancel()
    assert told == ["<Future failed>", "stop"]
    here: Future[int] = Future()
    here.set_result(1)
    assert not here.cancel()
    assert (here.value(), here.cancelled()) == (1, False)


def test_fu3_cancelling_wakes_the_waiter() -> None:
    future: Future[int] = Future()
    timer = after(future.cancel)
    with pytest.raises(CallCancelled):
        future.wait(SOON)
    timer.join()


def test_cancelling_a_future_cancels_the_futures_it_was_made_from() -> None:
    futures: list[Future[int]] = [Future() for _ in range(3)]
    heard: list[bool] = []
    following = futures[0].then(lambda done: heard.append(done.cancelled()))
    futures[1].set_result(1)
    together = collect_all([following, *futures[1:]])
    assert together.cancel()
    assert following.cancelled()
    assert [each.cancelled() for each in futures] == [True, False, True]
    assert heard == [True]
    with pytest.raises(CallCancelled):
        together.value()


def test_a_future_made_from_a_cancelled_one_gets_its_error() -> None:
    future: Future[int] = Future()
    following = future.then(lambda done: done.value())
    caught = future.then(lambda done: done.cancelled())
    together = collect_all([future])
    future.cancel()
    assert following.cancelled()
    assert caught.value()
    assert together.value() == [future]


def test_a_task_that_is_cancelled_cancels_what_it_awaits() -> None:
    async def cancelled(future: Future[int]) -> None:
        task = asyncio.ensure_future(waits(future))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def late(future: Future[int]) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.01)

    async def shielded(future: Future[int]) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(future), 0.01)
        assert not future.done()
        future.set_result(1)

    async def waits(future: Future[int]) -> int:
        return await future

    for use in (cancelled, late):
        future: Future[int] = Future()
        asyncio.run(use(future))
        assert future.cancelled()
    kept: Future[int] = Future()
    asyncio.run(shielded(kept))
    assert kept.value() == 1


def test_a_task_gets_the_error_of_a_future_that_another_task_cancels() -> None:
    async def use(future: Future[int]) -> None:
        asyncio.get_running_loop().call_soon(future.cancel)
        with pytest.raises(CallCancelled):  # and goes on: it has not been cancelled itself
            await future

    asyncio.run(use(Future()))


def test_errors_go_through_a_chain_until_they_are_caught() -> None:
    first: Future[int] = Future()
    second = first.then(lambda done: done.value() + 1)
    third = second.then(lambda done: done.value() + 1)
    caught = third.then(lambda done: repr(done.exception()))
    first.set_exception(KeyError("x"))
    for each in (second, third):
        with pytest.raises(KeyError):
            each.wait(SOON)
    assert caught.value() == "KeyError('x')"
    left = first.then(lambda done: sys.exit(3))
    assert isinstance(left.exception(), SystemExit)


def test_an_interrupt_within_a_callback_is_raised_after_all_callbacks_ran() -> None:
    future: Future[int] = Future()
    heard: list[object] = []

    def interrupt(_: Future[int]) -> None:
        raise KeyboardInterrupt

    future.add_done_callback(interrupt)
    future.add_done_callback(heard.append)
    with pytest.raises(KeyboardInterrupt):
        future.set_result(1)
    assert heard == [future]
    assert future.value() == 1


def test_fu4_a_complete_future_can_be_sent_and_an_open_one_is_refused() -> None:
    done, failed = Future[int](), Future[int]()
    done.set_result(3)
    failed.set_exception(KeyError("x"))
    came_done, came_failed = pickle.loads(pickle.dumps([done, failed]))
    assert came_done.wait() == 3
    assert isinstance(came_failed.exception(), KeyError)
    with pytest.raises(UsageError, match="an open future cannot be sent or copied"):
        pickle.dumps([Future()])


LONG = 5000
name_here: ContextVar[str] = ContextVar("name_here", default="nobody")


def test_fu5_callbacks_run_in_the_context_in_which_they_were_added() -> None:
    future: Future[int] = Future()
    seen: list[str] = []

    def see(_: object) -> None:
        seen.append(name_here.get())
        name_here.set("the callback's")  # in a copy of its own

    def add(name: str) -> None:
        name_here.set(name)
        future.add_done_callback(see)
        _ = future.then(see)

    def complete() -> None:
        name_here.set("the completing thread")
        future.set_result(1)

    for name in ("one", "other"):
        copy_context().run(add, name)
    copy_context().run(complete)
    assert seen == ["one", "one", "other", "other"]
    future.add_done_callback(see)
    assert seen[4:] == ["nobody"]
    assert name_here.get() == "nobody"


def plus_one(done: Future[int]) -> int:
    return done.value() + 1


def test_fu6_a_long_chain_is_completed() -> None:
    first: Future[int] = Future()
    last = first
    for _ in range(LONG):
        last = last.then(plus_one)
    first.set_result(0)
    assert last.wait(SOON) == LONG


def test_fu6_a_long_chain_that_fails_is_completed_with_the_error() -> None:
    first: Future[int] = Future()
    last = first
    for _ in range(LONG):
        last = last.then(plus_one)
    first.set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        last.wait(SOON)


def test_fu6_a_long_chain_is_cancelled() -> None:
    stopped = threading.Event()
    first: Future[int] = Future()
    first._stop = stopped.set
    last = first
    for _ in range(LONG):
        last = last.then(plus_one)
    assert last.cancel()
    assert first.cancelled()
    assert stopped.is_set()


def test_fu6_futures_that_complete_each_other_are_completed() -> None:
    futures: list[Future[int]] = [Future() for _ in range(LONG)]
    for one, other in itertools.pairwise(futures):
        one.add_done_callback(lambda _, other=other: other.set_result(1))  # type: ignore[misc]
    collected: Future[Any] = futures[-1]
    for _ in range(LONG):
        collected = collect_all([collected])
    futures[0].set_result(1)
    assert collected.wait(SOON)


def test_without_a_thread_to_be_had_callbacks_run_where_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(future_module, "is_deep", lambda: True)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    future: Future[int] = Future()
    following = future.then(plus_one)
    future.set_result(1)
    assert following.value() == 2
    assert "can't start new thread" in caplog.text


def test_a_marked_function_must_return_a_future() -> None:
    def give() -> Future[int]:
        return Future()

    future = give()
    assert expected(give, 5) == 5
    with pytest.raises(UsageError, match="give .* returns a future: mark it"):
        expected(give, future)
    setattr(give, ASYNC_MARK, True)
    assert expected(give, future) is future


def test_collecting_is_complete_with_the_last_of_them() -> None:
    futures: list[Future[int]] = [Future() for _ in range(3)]
    together = collect_all(futures)
    futures[2].set_result(2)
    futures[0].set_exception(KeyError("x"))
    assert not together.done()
    futures[1].set_result(1)
    assert together.value() == futures
    assert collect_all([]).value() == []


def test_collecting_drives_all_of_them() -> None:
    futures: list[Future[int]] = [Future() for _ in range(3)]
    for number, future in enumerate(futures):
        future.driver = Drive(lambda f=future, n=number: f.set_result(n))  # type: ignore[misc]
    assert [each.value() for each in collect_all(futures).wait(SOON)] == [0, 1, 2]


def test_waiting_for_all_raises_the_first_error_in_their_order() -> None:
    futures: list[Future[int]] = [Future() for _ in range(3)]
    futures[2].set_exception(KeyError("late"))
    futures[1].set_exception(ValueError("first"))
    timer = after(lambda: futures[0].set_result(0))
    with pytest.raises(ValueError, match="first"):
        wait_all(futures)
    timer.join()
    assert wait_all([futures[0], futures[0]]) == [0, 0]
    assert wait_all([]) == []


class Garbage:
    """Does something when the garbage collector finds it."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.me = self
        self.act = act

    def __del__(self) -> None:
        self.act()


@pytest.fixture
def always_collected() -> Iterator[None]:
    """Let the garbage collector come whenever something is made, and be quick."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@pytest.mark.usefixtures("always_collected")
def test_a_finalizer_may_complete_a_future() -> None:
    """As a signal handler may, which comes in the midst of anything as well.

    Before Python 3.12 the collector comes while something is made, since then between two
    instructions only. So it may leave something that is still in use then, and come for it later:
    another thread collects what the one that waits has left.
    """
    heard: list[Future[int]] = []

    def use() -> None:
        for number in range(50):
            future: Future[int] = Future()
            Garbage(lambda f=future, n=number: f.set_result(n))  # type: ignore[misc]
            future.add_done_callback(heard.append)
            assert future.wait(SOON) == number
            Garbage(lambda: Future[int]().set_result(1))
            Future[int]().add_done_callback(heard.append)
            with pytest.raises(TimeoutExpired):
                Future[int]().wait(0)

    user = threading.Thread(target=use, daemon=True)
    user.start()
    deadline = Deadline.after(SOON)
    while user.is_alive() and not deadline.passed():
        user.join(0.01)
        gc.collect()
    assert [future.value() for future in heard] == list(range(50))
    assert not user.is_alive()


def test_a_wait_that_timed_out_leaves_nothing_behind() -> None:
    future: Future[int] = Future()
    for _ in range(3):
        with pytest.raises(TimeoutExpired):
            future.wait(0.001)
    assert not future._gates


def test_a_forked_child_can_use_futures_whatever_other_threads_did() -> None:
    with future_module._lock:
        forked: list[int] = []

        def fork() -> None:
            child = os.fork()
            if child == 0:
                signal.alarm(int(SOON))
                Future[int]().set_result(1)
                os._exit(7)
            forked.append(child)

        forker = threading.Thread(target=fork)
        forker.start()
        forker.join()
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 7
