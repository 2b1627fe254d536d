"""The reads of clients, from their arrival until they may be performed.

A read waits until its leader is sure that it still leads. One question is asked for all reads that
came since the last one; its answer lets them be performed, for each connection in order.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from holdfast.errors import PeerViolation
from holdfast.store.messages import FromClient

__all__ = ["READS_BYTES_MAX", "ReadQueue"]

READS_BYTES_MAX = 64 * 1024 * 1024


class _Read(NamedTuple):
    message: FromClient
    size: int


class ReadQueue:
    """Messages that ask for something without changing it. Not more than READS_BYTES_MAX."""

    def __init__(self) -> None:
        self._new: list[tuple[int, _Read]] = []
        self._asked: dict[int, list[tuple[int, _Read]]] = {}
        self._ready: dict[int, deque[_Read]] = {}
        self._bytes = 0
        self._questions = 0

    def add(self, connection: int, message: FromClient, size: int) -> None:
        """Keep a message that takes so many bytes; PeerViolation if too many wait."""
        if self._bytes + size > READS_BYTES_MAX:
            raise PeerViolation(f"reads of more than {READS_BYTES_MAX} bytes wait")
        self._bytes += size
        self._new.append((connection, _Read(message, size)))

    def ask(self) -> int | None:
        """Return the number of a question about all new reads, or None if there are none."""
        if not self._new:
            return None
        self._questions += 1
        self._asked[self._questions], self._new = self._new, []
        return self._questions

    def confirm(self, question: int) -> None:
        """Hear that all reads may be performed that this question, or one before, was about."""
        for number in [number for number in self._asked if number <= question]:
            for connection, read in self._asked.pop(number):
                self._ready.setdefault(connection, deque()).append(read)

    def ready(self) -> tuple[int, ...]:
        """Return the connections for which reads may be performed."""
        return tuple(self._ready)

    def take(self, connection: int) -> FromClient | None:
        """Return the next read of a connection that may be performed, or None."""
        waiting = self._ready.get(connection)
        if waiting is None:
            return None
        read = waiting.popleft()
        self._bytes -= read.size
        if not waiting:
            del self._ready[connection]
        return read.message

    def forget(self, connection: int) -> None:
        """Drop what may be performed for a connection that is over."""
        self._bytes -= sum(read.size for read in self._ready.pop(connection, ()))

    def clear(self) -> None:
        """Drop everything."""
        self._new.clear()
        self._asked.clear()
        self._ready.clear()
        self._bytes = 0
