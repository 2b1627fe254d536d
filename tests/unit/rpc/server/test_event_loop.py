"""The loop that runs coroutines of the callee."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from holdfast.errors import Overloaded, UsageError
from holdfast.rpc.server.event_loop import EventLoop

SOON = 20.0


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop("test-loop")
    try:
        yield made
    finally:
        made.close()


async def back(value: object) -> object:
    await asyncio.sleep(0)
    return value


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def forever() -> None:
    await asyncio.Event().wait()


def test_the_thread_begins_with_the_first_coroutine(loop: EventLoop) -> None:
    before = threading.active_count()
    assert loop.run(back(1)).wait(SOON) == 1
    assert loop.run(back(2)).wait(SOON) == 2
    assert threading.active_count() == before + 1


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]
)
def test_an_error_of_any_kind_is_the_outcome_and_does_not_end_the_loop(
    loop: EventLoop, error: BaseException
) -> None:
    assert type(loop.run(fail(error)).exception(SOON)) is type(error)
    assert loop.run(back(1)).wait(SOON) == 1


def test_a_coroutine_can_be_cancelled_before_its_first_step_and_later(loop: EventLoop) -> None:
    for _ in range(100):
        early = loop.run(forever())
        loop.cancel(early)
        assert isinstance(early.exception(SOON), asyncio.CancelledError)
    started = threading.Event()

    async def start() -> None:
        started.set()
        await forever()

    late = loop.run(start())
    assert started.wait(SOON)
    loop.cancel(late)
    assert isinstance(late.exception(SOON), asyncio.CancelledError)
    loop.cancel(late)  # it is over
    assert loop.run(back(1)).wait(SOON) == 1


def test_a_coroutine_runs_in_the_context_of_the_thread_that_submits_it(loop: EventLoop) -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)

    async def look() -> int:
        return variable.get()

    variable.set(5)
    assert loop.run(look()).wait(SOON) == 5


def test_closing_cancels_running_coroutines(loop: EventLoop) -> None:
    future = loop.run(forever())
    loop.close()
    assert isinstance(future.exception(SOON), asyncio.CancelledError)
    loop.close()
    loop.cancel(future)
    with pytest.raises(UsageError, match="shut down"):
        _ = loop.run(back(1))  # and no warning that it was never awaited


def test_a_coroutine_that_stops_the_loop_stops_no_other_coroutine(loop: EventLoop) -> None:
    begun = threading.Event()

    async def stop(value: int) -> int:
        asyncio.get_running_loop().stop()
        return await back(value)  # type: ignore[return-value]

    async def stop_at_the_end() -> None:
        begun.set()
        try:
            await forever()
        finally:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0)

    assert [loop.run(stop(n)).wait(SOON) for n in range(3)] == [0, 1, 2]
    last = loop.run(stop_at_the_end())
    assert begun.wait(SOON)
    assert loop._thread is not None
    loop.close()
    assert isinstance(last.exception(SOON), asyncio.CancelledError)
    assert not loop._thread.is_alive()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_error_in_a_callback_or_a_task_does_not_end_the_loop(
    loop: EventLoop, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def raise_() -> None:
        raise kind

    async def begin() -> None:
        asyncio.get_running_loop().call_soon(raise_)
        task = asyncio.create_task(fail(kind()))
        await asyncio.wait([task])
        assert isinstance(task.exception(), kind)

    assert loop.run(begin()).exception(SOON) is None
    assert loop.run(back(1)).wait(SOON) == 1
    assert caplog.text.count("the loop goes on") == 2


def test_a_coroutine_may_close_its_own_loop(loop: EventLoop) -> None:
    async def close() -> None:
        loop.close()

    loop.run(close()).exception(SOON)


def test_without_a_thread_to_be_had_a_coroutine_is_refused(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(Overloaded, match="needs a thread: can't start new thread"):
            _ = loop.run(back(1))
    assert loop.run(back(2)).wait(SOON) == 2
