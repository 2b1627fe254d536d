"""A transport inside one process: two ends, joined by queues."""

from __future__ import annotations

import threading
from collections import deque

from holdfast.clock import Deadline
from holdfast.errors import Unavailable
from holdfast.net.frames import check_frame

__all__ = ["InprocTransport", "pair"]


def pair(near: str = "near", far: str = "far") -> tuple[InprocTransport, InprocTransport]:
    """Return the two ends of a new connection; `near` and `far` name them in messages."""
    changed = threading.Condition()
    one, other = InprocTransport(far, changed), InprocTransport(near, changed)
    one._other, other._other = other, one
    return one, other


class InprocTransport:
    """One end. See `transport.Transport`."""

    def __init__(self, peer: str, changed: threading.Condition) -> None:
        self.peer = peer
        self._other = self
        self._arrived: deque[bytes] = deque()
        # Shared by both ends; guards everything and is notified at every change.
        self._changed = changed
        self._closed = False

    def send(self, payload: bytes, deadline: Deadline) -> None:
        check_frame(payload)
        with self._changed:
            self._check()
            self._other._arrived.append(payload)
            self._changed.notify_all()

    def receive(self, wait_s: float) -> list[bytes]:
        with self._changed:
            if not self._arrived:
                self._check()
                self._changed.wait(wait_s)
            if not self._arrived:
                self._check()
            frames = list(self._arrived)
            self._arrived.clear()
            return frames

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def release(self) -> None:
        pass  # both ends were copied by the fork; the parent's are untouched

    def _check(self) -> None:
        if self._closed or self._other._closed:
            raise Unavailable(f"connection to {self.peer} lost: closed", address=self.peer)
