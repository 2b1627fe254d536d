"""The way out of a connection that is served: its answers, from whichever thread they come.

The thread that serves the connection may block until the peer takes what it is sent. Others must
not: an answer that comes later comes from the event loop, say, or from the reader of all pipes,
and a peer that does not read would hold up everybody's. What the peer does not take at once of
such an answer is sent by a thread of its own, and what follows is kept until then. So that this
does not grow for ever, the thread that serves reads no more requests while much is kept.

Guarantees
    OU-1  At most one thread sends at a time, and answers go out whole, one after the other.
    OU-2  `offer` never blocks for the peer's sake.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.messages import Buffer, Message
from holdfast.rpc.wire.parts import views_of

__all__ = ["ReplyWriter"]

_log = logging.getLogger("holdfast.rpc")


class ReplyWriter:
    """Sends the answers of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Held by the thread that sends. One that cannot finish leaves it to another, locked.
        self._sending = threading.Lock()
        # Anybody adds to it, who sends takes off: each is one instruction.
        self._answers: deque[Message] = deque()

    def gather(self, answer: Message) -> int:
        """Keep an answer until the next `flush`; return how many are kept."""
        self._answers.append(answer)
        return len(self._answers)

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._answers)

    def flush(self) -> None:
        """Send what is kept. Blocks until the peer takes it; OSError if the connection is over."""
        while self._answers:  # again, since others leave theirs to who sends
            with self._sending:
                self._connection.send_parts(self._take())

    def offer(self, answer: Message) -> None:
        """Send an answer now or soon. Does not block; OSError if the connection is over."""
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
        """Take what is kept; for who sends."""
        parts: list[Buffer] = []
        while self._answers:
            self._connection.put(self._answers.popleft(), parts)
        return parts

    def _hand_over(self, rest: list[memoryview]) -> None:
        """Let another thread send the rest of what is being sent, and what has gathered by then."""

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
