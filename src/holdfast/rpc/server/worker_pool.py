"""The threads that serve connections: each runs one job after another.

A job is a connection to serve, or the rest of a pipe whose reader is busy with a call. A thread
that has finished waits IDLE_S for the next job, so that calls which block, or call others, do not
start a thread each.

Guarantees
    WP-1  A job starts at once, on an idle thread or a new one, or `run` returns False: no job is
          queued behind another, so jobs that depend on each other finish.
    WP-2  A job that takes over a pipe is refused while `threads_max` threads are busy. A job that
          reads a connection is not: callers bound their connections, and there is always a thread
          to reply that there are too many calls.
    WP-3  An idle thread keeps nothing of its last job, and ends after IDLE_S, or with `close`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["IDLE_S", "THREADS_MAX", "WorkerPool", "try_start"]

THREADS_MAX = 1024
IDLE_S = 5.0

_log = logging.getLogger("holdfast.rpc")


def try_start(name: str, target: Callable[..., object], *args: object) -> bool:
    """Start a thread; False if the system cannot."""
    try:
        threading.Thread(target=target, args=args, name=name, daemon=True).start()
    except RuntimeError as error:
        _log.warning("a thread could not be started: %s", error)
        return False
    return True


class WorkerPool:
    """Threads of one server.

    It has no lock: a `__del__` that makes a call may ask for a thread at any point in this code.
    Each change of the two collections is one instruction.
    """

    def __init__(self, name: str, threads_max: int = THREADS_MAX, idle_s: float = IDLE_S) -> None:
        self._name = name
        self._threads_max = threads_max
        self._idle_s = idle_s
        self._idle: deque[_Worker] = deque()
        self._workers: set[_Worker] = set()
        self._closed = False

    def run(self, job: Callable[[], object], *, reads: bool = False) -> bool:
        """Run a job on a thread of its own; False if there is none, and the job will not run.

        A job that reads a connection is not counted against the bound (WP-2).
        """
        if self._closed:
            return False
        if not reads and len(self._workers) - len(self._idle) >= self._threads_max:
            return False
        try:
            worker = self._idle.pop()
        except IndexError:
            return self._start(job)
        worker.job = job
        worker.gate.release()
        return True

    def __len__(self) -> int:
        """Return how many threads there are."""
        return len(self._workers)

    def close(self) -> None:
        """End idle threads now, and others when their jobs end; run no more jobs. Idempotent."""
        self._closed = True
        while True:
            try:
                worker = self._idle.pop()
            except IndexError:
                return
            worker.gate.release()  # without a job: the thread ends

    def _start(self, job: Callable[[], object]) -> bool:
        worker = _Worker(self, job)
        self._workers.add(worker)
        if not try_start(f"{self._name}-worker", worker.run):
            self._workers.discard(worker)
            return False
        return True

    def _ended(self, worker: _Worker) -> None:
        self._workers.discard(worker)

    def _next(self, worker: _Worker) -> None:
        """Wait for the next job of a worker; it has none if its thread is to end."""
        self._idle.append(worker)
        if self._closed and self._take_back(worker):
            return
        if not worker.gate.acquire(timeout=self._idle_s) and not self._take_back(worker):
            worker.gate.acquire()  # another thread is giving it a job

    def _take_back(self, worker: _Worker) -> bool:
        """Remove a worker from the idle ones; False if it was given a job."""
        try:
            self._idle.remove(worker)
        except ValueError:
            return False
        return True


class _Worker:
    """One thread; `gate` is released when it has a job, or is to end."""

    def __init__(self, pool: WorkerPool, job: Callable[[], object]) -> None:
        self._pool = pool
        self.job: Callable[[], object] | None = job
        self.gate = threading.Lock()
        self.gate.acquire()

    def run(self) -> None:
        """Run jobs until none arrives for a while."""
        try:
            while self.job is not None:
                job, self.job = self.job, None
                try:
                    job()
                except Exception:
                    _log.exception("a thread that serves a connection failed")
                del job  # WP-3
                self._pool._next(self)
        finally:
            self._pool._ended(self)
