"""Scheduler: tasks to run soon, or after a delay, on a separate thread."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
from collections.abc import Callable

from holdfast.clock import SYSTEM_CLOCK, Clock

__all__ = ["Scheduler"]

_log = logging.getLogger("holdfast.rpc")


class Scheduler:
    """Runs one task after the other. The thread starts with the first one."""

    def __init__(self, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._name = name
        self._clock = clock
        # `put` is safe anywhere: also in a signal handler and during a garbage collection.
        self._inbox: queue.SimpleQueue[tuple[float, Callable[[], None]] | None]
        self._inbox = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, task: Callable[[], None], delay_s: float = 0.0) -> None:
        """Run a task after `delay_s`. After `close` no task runs."""
        at = self._clock.monotonic() + delay_s if delay_s else 0.0
        self._inbox.put((at, task))
        if self._thread is None:
            self._begin()

    def close(self) -> None:
        """End the thread; tasks that have not begun by then never run. Idempotent."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._inbox.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    def _begin(self) -> None:
        # Not blocking: a garbage collection may have interrupted this very method.
        if self._lock.acquire(blocking=False):
            try:
                if self._thread is None and not self._closed:
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    thread.start()
                    self._thread = thread
            except RuntimeError as error:  # the next task tries again
                _log.warning("a thread could not be started: %s", error)
            finally:
                self._lock.release()

    def _run(self) -> None:
        due: list[tuple[float, int, Callable[[], None]]] = []
        numbers = itertools.count()
        while True:
            wait_s = max(0.0, due[0][0] - self._clock.monotonic()) if due else None
            try:
                came = self._inbox.get(timeout=wait_s)
            except queue.Empty:
                pass
            else:
                if came is None:
                    return
                heapq.heappush(due, (came[0], next(numbers), came[1]))
                del came  # a task that has run must not stay alive until the next one comes
            while due and due[0][0] <= self._clock.monotonic():
                try:
                    heapq.heappop(due)[2]()
                except Exception:
                    _log.exception("a task of an RPC agent failed")
