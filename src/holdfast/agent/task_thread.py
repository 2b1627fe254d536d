"""A thread that runs tasks for another one, in the order in which they were submitted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from holdfast.threads import start_thread

__all__ = ["TaskThread"]


class TaskThread:
    """Runs blocking tasks on its own thread, so that the thread that submits one need not wait.

    A task must not raise: it reports its outcome itself.
    """

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._started = False
        self._closed = False

    def submit(self, task: Callable[[], None]) -> None:
        """Submit a task; the thread begins with the first one. Unavailable if it cannot."""
        if not self._started:
            start_thread(self._thread)
            self._started = True
        self._tasks.put(task)

    def close(self, timeout_s: float) -> bool:
        """Wait for the submitted tasks, then end the thread; say whether it ended in time."""
        if not self._started:
            return True
        if not self._closed:
            self._closed = True
            self._tasks.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
