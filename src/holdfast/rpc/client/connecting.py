"""Calls and notes that wait for their pipe to be opened.

To connect takes two round trips, and longer if the peer does not respond. A thread that posts a
call does not wait for that: the call is queued here, and a separate thread opens the pipe. Notes,
which have no reply, are queued too, and are dropped if no pipe can be opened.

Guarantees
    OP-1  `post` and `expire` do not block.
    OP-2  Every call that was posted is passed on to the pipe, or fails, exactly once: because it
          expired, because no pipe could be opened, or with the error given to `close`.
    OP-3  At most CALLS_MAX calls and BYTES_MAX bytes wait; a call beyond that is refused with
          Overloaded.
    OP-4  A call that is given up is not passed on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, Overloaded
from holdfast.rpc.client.background_reader import TICK_S, BackgroundReader
from holdfast.rpc.client.pipe import BYTES_MAX, CALLS_MAX, Pipe, Reply
from holdfast.rpc.client.replies import deliver
from holdfast.rpc.wire.messages import Message

__all__ = ["PendingPipe"]


class PendingPipe:
    """A pipe that is being opened, and the calls that wait for it."""

    def __init__(
        self, name: str, open_pipe: Callable[[], Pipe], background: BackgroundReader
    ) -> None:
        self._open_pipe = open_pipe
        self._background = background
        # Guards the fields below; notified when the pipe is open or has failed.
        self._over = threading.Condition()
        self._waiting: deque[tuple[Message, Reply, float]] = deque()
        self._passing = 0  # the call that is being passed on to the pipe
        self._notes: list[Message] = []
        self._bytes = 0
        self._pipe: Pipe | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to open it; RuntimeError if no thread can be started."""
        self._thread.start()
        self._background.time(self)

    def post(self, message: Message, reply: Reply, expire_at: float) -> bool:
        """Queue a call; return False if the pipe is open or has failed."""
        size = message.size()
        with self._over:
            if self.over:
                return False
            if len(self._waiting) >= CALLS_MAX or (
                self._waiting and self._bytes + size > BYTES_MAX
            ):
                raise Overloaded(
                    f"{len(self._waiting)} calls and {self._bytes} bytes wait for a connection to "
                    f"this worker: at most {CALLS_MAX} and {BYTES_MAX}"
                )
            self._waiting.append((message, reply, expire_at))
            self._bytes += size
        return True

    def note(self, message: Message) -> bool:
        """Queue a message that has no reply; return False if the pipe is open or has failed."""
        with self._over:
            if self.over:
                return False
            if len(self._notes) < CALLS_MAX:  # the rest is dropped without an error
                self._notes.append(message)
        return True

    @property
    def over(self) -> bool:
        """Whether the pipe is open or has failed."""
        return self._pipe is not None or self._error is not None

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    def expire(self, now: float) -> bool:
        """Fail the expired calls; return whether to call this again."""
        with self._over:
            late = self._take_out(lambda _, at: at <= now)
            going = not self.over
        for _, reply, _ in late:
            deliver(reply, TimeoutError("no connection was opened"))
        return going

    def give_up(self, call: int) -> None:
        """Forget a call, and send nothing of it: its arguments may change."""
        with self._over:
            self._take_out(lambda message, _: message.call == call)
            while self._passing == call:
                self._over.wait(TICK_S)
            pipe = self._pipe
        if pipe is not None:
            pipe.give_up(call)

    def _take_out(
        self, which: Callable[[Message, float], bool]
    ) -> list[tuple[Message, Reply, float]]:
        """Remove waiting calls, and return them. With the lock held."""
        taken = [entry for entry in self._waiting if which(entry[0], entry[2])]
        if taken:
            self._waiting = deque(entry for entry in self._waiting if not which(entry[0], entry[2]))
            self._bytes -= sum(message.size() for message, _, _ in taken)
        return taken

    def close(self, error: Exception) -> None:
        """Fail all calls with this error. Idempotent; the thread ends when its attempt does."""
        self._settle(None, error)

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Wait for the pipe, then drive it until `done()` or the deadline."""
        with self._over:
            while not self.over:
                if done() or deadline.passed():
                    return
                self._over.wait(deadline.sooner(TICK_S).remaining())
        if self._pipe is not None:
            self._pipe.drive(done, deadline)

    def _run(self) -> None:
        try:
            self._settle(self._open_pipe(), None)
        except Exception as error:  # any error: the waiting calls must fail
            self._settle(None, error)

    def _settle(self, pipe: Pipe | None, error: Exception | None) -> None:
        with self._over:
            if self.over:
                return
            self._pipe, self._error = pipe, error
            notes, self._notes = self._notes, []
            self._over.notify_all()
        while (entry := self._next()) is not None:
            message, reply, at = entry
            if pipe is None:
                deliver(reply, error or TimeoutError())
                continue
            try:
                pipe.post(message, reply, at)
            except HoldfastError as refused:
                deliver(reply, refused)
        if pipe is not None:
            for note in notes:
                pipe.note(note)

    def _next(self) -> tuple[Message, Reply, float] | None:
        """Return the next waiting call, if any, and mark the last one as passed on."""
        with self._over:
            entry = self._waiting.popleft() if self._waiting else None
            self._passing = 0 if entry is None else entry[0].call
            self._over.notify_all()
        return entry
