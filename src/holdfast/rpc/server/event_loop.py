"""Runs coroutines of the callee: an event loop on a thread of its own, started when needed."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, Overloaded, UsageError
from holdfast.rpc.client.future import Future

if TYPE_CHECKING:
    import asyncio

__all__ = ["EventLoop"]

_log = logging.getLogger("holdfast.rpc")


class EventLoop:
    """Runs coroutines. The thread starts with the first one, and ends with `close`.

    A coroutine cannot end the thread: not by `loop.stop()`, nor by an error of its callbacks or
    tasks. A coroutine runs in the context (`contextvars`) of the thread that calls `run`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._tasks: dict[Future[Any], asyncio.Task[Any]] = {}  # used by the loop's thread only

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine; return the future of what it returns."""
        future: Future[Any] = Future()

        def begin(loop: asyncio.AbstractEventLoop) -> None:
            task = loop.create_task(_outcome_of(coroutine))
            self._tasks[future] = task
            task.add_done_callback(finish)

        def finish(task: asyncio.Task[Any]) -> None:
            del self._tasks[future]
            if task.cancelled():
                coroutine.close()  # it may not have started
                future.set_exception(_cancelled())
                return
            value, error = task.result()
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        try:
            loop = self._started()
            loop.call_soon_threadsafe(begin, loop)
        except HoldfastError:
            coroutine.close()
            raise
        except RuntimeError as error:  # closed meanwhile
            coroutine.close()
            raise UsageError("this agent has been shut down") from error
        return future

    def cancel(self, future: Future[Any]) -> None:
        """Cancel the coroutine of a future that `run` returned, if it still runs."""
        loop = self._loop

        def cancel() -> None:
            task = self._tasks.get(future)
            if task is not None:
                task.cancel()

        if loop is not None:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(cancel)

    def close(self) -> None:
        """Cancel the running coroutines and end the thread. Idempotent."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join(5.0)

    def _started(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._lock:
            if self._closed:
                raise UsageError("this agent has been shut down")
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=self._serve, args=(loop,), name=self._name, daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:
                    loop.close()
                    raise Overloaded(f"a coroutine needs a thread: {error}") from None
                self._loop, self._thread = loop, thread
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        asyncio.set_event_loop(loop)
        while not self._closed:
            _run(loop)
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        ended = asyncio.gather(*left, return_exceptions=True)
        ended.add_done_callback(lambda _: loop.stop())
        while not ended.done():
            _run(loop)
        loop.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped: by us, by a coroutine, or by an error of a callback."""
    try:
        loop.run_forever()
    except BaseException:  # SystemExit or KeyboardInterrupt: asyncio logs the others
        _log.exception("a callback or a task of a coroutine has raised this; the loop goes on")


async def _outcome_of(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Wait for a coroutine; return any error as a result, so that it does not end the loop."""
    import asyncio

    try:
        return await coroutine, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


def _cancelled() -> BaseException:
    import asyncio

    return asyncio.CancelledError()
