"""Sends the replies of one served connection, from any thread.

The thread that serves the connection may block until the peer reads. Other threads must not block:
a later reply may come from the event loop, or from the background reader of all pipes, and a peer
that does not read would delay the replies to all other callers. If the peer does not accept such a
reply at once, a separate thread sends the rest, and the replies that follow are kept until then.
Backpressure bounds them: the serving thread reads no more requests while many replies are kept.

Guarantees
    OU-1  At most one thread sends at a time, and replies are sent whole, one after the other.
    OU-2  `offer` never blocks because the peer does not read.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from holdfast.rpc.wire.codec import views_of
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.messages import Buffer, Message

__all__ = ["ReplyWriter"]

_log = logging.getLogger("holdfast.rpc")


class ReplyWriter:
    """Sends the replies of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Held by the sending thread. If it cannot finish, it passes the held lock to another one.
        self._sending = threading.Lock()
        # Any thread adds, the sending thread removes: each is one instruction.
        self._answers: deque[Message] = deque()

    def gather(self, answer: Message) -> int:
        """Keep a reply until the next `flush`; return how many are kept."""
        self._answers.append(answer)
        return len(self._answers)

    def __len__(self) -> int:
        """Return how many replies are kept."""
        return len(self._answers)

    def flush(self) -> None:
        """Send the kept replies. Blocks until the peer reads; OSError if the connection is over."""
        while self._answers:  # again: other threads leave their replies to the sending one
            with self._sending:
                self._connection.send_parts(self._take())

    def offer(self, answer: Message) -> None:
        """Send a reply now or soon. Does not block; OSError if the connection is over."""
        self.gather(answer)
        while self._answers and self._sending.acquire(blocking=False):
            over = True
            try:
                rest = views_of(self._take())
                over = self._connection.send_some(rest)
            finally:
                if over:
                    self._sending.release()
            if not over:
                self._hand_over(rest)

    def _take(self) -> list[Buffer]:
        """Remove and return the kept replies. For the sending thread."""
        parts: list[Buffer] = []
        while self._answers:
            self._connection.put(self._answers.popleft(), parts)
        return parts

    def _hand_over(self, rest: list[memoryview]) -> None:
        """Let another thread send the rest of the current reply, and the replies kept by then."""

        def send() -> None:
            try:
                try:
                    self._connection.send_parts(rest)
                finally:
                    self._sending.release()
                self.flush()
            except OSError as error:
                _log.debug("an answer was not taken: %s", error)

        try:
            threading.Thread(target=send, name="holdfast-rpc-send", daemon=True).start()
        except RuntimeError as error:
            _log.warning("a thread could not be started: %s", error)
            send()
