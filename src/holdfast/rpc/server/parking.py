"""Idle connections: one thread waits for all of them.

A connection in use has a thread that reads it, so that a call costs no hand-over. An idle one needs
no thread: it is parked here, and gets a thread again when something arrives.

Guarantees
    PK-1  A parked connection is resumed once when something arrives, or when it ends; bytes that
          arrived just before it was parked count.
    PK-2  Any number of parked connections costs one thread.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable

from holdfast.rpc.server.worker_pool import WorkerPool, try_start
from holdfast.rpc.wire.connection import Connection

__all__ = ["AGAIN_S", "Parking"]

AGAIN_S = 0.01
"""How soon to ask the pool again for a thread when it had none."""
_ONCE = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT

_log = logging.getLogger("holdfast.rpc")


class Parking:
    """The idle connections of one server. The thread starts with the first one."""

    def __init__(self, name: str, pool: WorkerPool) -> None:
        self._name = name
        self._pool = pool
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._parked: dict[int, Callable[[], object]] = {}
        self._closed = False

    def park(self, connection: Connection, resume: Callable[[], object]) -> bool:
        """Run `resume` on a thread of the pool when something arrives; False if that cannot be.

        Only the thread that reads the connection may park it, and must not read it afterwards.
        """
        fd = connection.fileno()
        with self._lock:
            epoll = None if fd < 0 or self._closed else self._started()
            if epoll is None:
                return False
            self._parked[fd] = resume
            try:
                epoll.register(fd, _ONCE)
            except OSError as error:
                del self._parked[fd]
                _log.debug("a connection cannot be parked: %s", error)
                return False
        return True

    def __len__(self) -> int:
        """Return how many connections are parked."""
        return len(self._parked)

    def close(self) -> None:
        """Resume all connections, so that they end, and end the thread. Idempotent."""
        with self._lock:
            self._closed = True
            wake = self._wake
        if wake is not None:
            with contextlib.suppress(OSError):
                wake[1].send(b".")

    def _started(self) -> select.epoll | None:
        """Start the thread if it does not run; None if that fails. With the lock held."""
        if self._epoll is None:
            epoll, wake = select.epoll(), socket.socketpair()
            epoll.register(wake[0].fileno(), select.EPOLLIN)
            if not try_start(f"{self._name}-idle", self._run, epoll, wake):
                epoll.close()
                for sock in wake:
                    sock.close()
                return None
            self._epoll, self._wake = epoll, wake
        return self._epoll

    def _run(self, epoll: select.epoll, wake: tuple[socket.socket, socket.socket]) -> None:
        waiting: list[Callable[[], object]] = []
        while not self._closed:
            for fd, _ in epoll.poll(AGAIN_S if waiting else None):
                with self._lock:
                    resume = self._parked.pop(fd, None)
                if resume is not None:  # else it is `wake`
                    epoll.unregister(fd)
                    waiting.append(resume)
            waiting = [resume for resume in waiting if not self._pool.run(resume, reads=True)]
        with self._lock:
            waiting += self._parked.values()
            self._parked.clear()
            epoll.close()
            for sock in wake:
                sock.close()
        for resume in waiting:
            resume()  # all are shut: each of these returns at once
