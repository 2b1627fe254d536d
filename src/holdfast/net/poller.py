"""Waiting for the sockets of one thread: epoll, or poll where the system has no epoll.

The standard library's selectors do the same and cost several times as much for each event, which a
server pays for each request.

Guarantees
    PO-1  `wait` spins before it sleeps only if recent waits were short (EG-1, EG-2): a server
          answers a client's next request without being woken, and an idle one sleeps.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from holdfast.clock import SYSTEM_CLOCK
from holdfast.net.spin import AdaptiveSpin

__all__ = ["READABLE", "WRITABLE", "Poller"]

READABLE, WRITABLE = select.POLLIN, select.POLLOUT  # epoll has the same numbers

SPIN_S = 100e-6
"""How long to spin before sleeping."""

T = TypeVar("T")
_Ready: TypeAlias = list[tuple[int, int]]


class Poller(Generic[T]):
    """Sockets, and what each of them stands for. Not safe between threads."""

    def __init__(self) -> None:
        self._spin = AdaptiveSpin(os.cpu_count() or 1)
        self.targets: dict[int, T] = {}
        """What was added, by the number of its descriptor."""
        self._poll, self._poll_s = _make_poll()

    def add(self, sock: socket.socket, events: int, target: T) -> None:
        """Wait for these events of a socket from now on."""
        self._poll.register(sock, events)
        self.targets[sock.fileno()] = target

    def change(self, sock: socket.socket, events: int) -> None:
        """Wait for other events of a socket that was added."""
        self._poll.modify(sock, events)

    def remove(self, sock: socket.socket) -> None:
        """Wait for a socket no more: before it is closed, since its number is used again."""
        self._poll.unregister(sock)
        del self.targets[sock.fileno()]

    def wait(self, seconds: float | None) -> _Ready:
        """Wait for events, None: without a limit; return descriptors and what happened to each.

        Beside the events asked for that may be an error or the end of the connection.
        """
        poll, monotonic = self._poll_s, SYSTEM_CLOCK.monotonic  # spinning takes real time
        if seconds == 0.0:
            return poll(0.0)
        begun = monotonic()
        if self._spin.now:
            end = begun + (SPIN_S if seconds is None else min(seconds, SPIN_S))
            ready = poll(0.0)
            while not ready and monotonic() < end:
                ready = poll(0.0)
            self._spin.record_spin(bool(ready))
            if ready:
                return ready
        ready = poll(seconds)
        self._spin.record_sleep(monotonic() - begun)
        return ready

    def close(self) -> None:
        """Wait for nothing any more. The sockets stay open. Idempotent."""
        self.targets.clear()
        close = getattr(self._poll, "close", None)  # poll holds no descriptor
        if close is not None:
            close()


def _make_poll() -> tuple[select.epoll | select.poll, Callable[[float | None], _Ready]]:
    """Return what polls, and its method by which to poll for a number of seconds."""
    if hasattr(select, "epoll"):
        epoll = select.epoll()
        return epoll, epoll.poll
    poll = select.poll()
    return poll, lambda seconds: poll.poll(None if seconds is None else 1000 * seconds)
