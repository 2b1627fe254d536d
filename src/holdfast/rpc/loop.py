"""Coroutines of those who are called: an event loop on a thread of its own, made when needed."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.rpc.future import Future

if TYPE_CHECKING:
    import asyncio

__all__ = ["Loop"]


class Loop:
    """Runs coroutines. The thread begins with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._tasks: dict[Future[Any], asyncio.Task[Any] | None] = {}  # of the loop's thread

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine; return the future of what it returns."""
        import asyncio  # costs more than all the rest

        future: Future[Any] = Future()
        loop = self._started()

        async def wrapped() -> None:
            self._tasks[future] = asyncio.current_task()
            try:
                value = await coroutine
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, Exception | asyncio.CancelledError):
                    raise
            else:
                future.set_result(value)
            finally:
                self._tasks.pop(future, None)

        asyncio.run_coroutine_threadsafe(wrapped(), loop)
        return future

    def cancel(self, future: Future[Any]) -> None:
        """Cancel the coroutine of a future that `run` returned, if it still runs."""
        loop = self._loop

        def cancel() -> None:
            task = self._tasks.get(future)
            if task is not None:
                task.cancel()

        if loop is not None:
            loop.call_soon_threadsafe(cancel)

    def close(self) -> None:
        """Cancel what runs and end the thread. Idempotent."""
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
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.close()
