"""Calls and notes that wait for their pipe to be opened.

To connect takes two round trips, and longer if the peer does not respond. A thread that posts a
call does not wait for that: the call is queued here, and a separate thread opens the pipe. Notes,
which have no reply, are queued too, and are dropped if no pipe can be opened.

Guarantees
    OP-1  `post` and `expire` do not block.
    OP-2  Every call that was posted is passed on to the pipe, or fails, exactly once: because it
          expired, because no pipe could be opened, or with the error given to `close`.
    OP-3  At most CALLS_MAX calls and BYTES_MAX bytes wait (CA-2).
    OP-4  A call that is given up is not passed on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError
from holdfast.rpc.client.background_reader import TICK_S, BackgroundReader
from holdfast.rpc.client.calls import CALLS_MAX, OpenCalls
from holdfast.rpc.client.pipe import Pipe
from holdfast.rpc.client.replies import Reply, deliver
from holdfast.rpc.wire.messages import Message

__all__ = ["PendingPipe"]

_Waiting: TypeAlias = tuple[Message, Reply, float]
"""A request, what waits for its reply, and until when."""


class PendingPipe:
    """A pipe that is being opened, and the calls that wait for it."""

    def __init__(
        self, name: str, open_pipe: Callable[[], Pipe], background: BackgroundReader
    ) -> None:
        self._open_pipe = open_pipe
        self._background = background
        # Guards the fields below; notified when the pipe is open or has failed.
        self._over = threading.Condition()
        self._calls = OpenCalls[_Waiting]("wait for a connection to this worker")
        self._passing = 0  # the call that is being passed on to the pipe
        self._notes: list[Message] = []
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
            self._calls.add(message.call, (message, reply, expire_at), expire_at, size)
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
        return len(self._calls.open)

    def expire(self, now: float) -> bool:
        """Fail the expired calls; return whether to call this again."""
        with self._over:
            late = list(map(self._calls.remove, self._calls.late(now)))
            self._calls.look_again()
            going = not self.over
        for entry in filter(None, late):
            deliver(entry[1], TimeoutError("no connection was opened"))
        return going

    def give_up(self, call: int) -> None:
        """Forget a call, and send nothing of it: its arguments may change."""
        with self._over:
            self._calls.remove(call)
            while self._passing == call:
                self._over.wait(TICK_S)
            pipe = self._pipe
        if pipe is not None:
            pipe.give_up(call)

    def close(self, error: Exception) -> None:
        """Fail all calls with this error. Idempotent; the thread ends when its attempt does."""
        self._pass_on(None, error)

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
            self._pass_on(self._open_pipe(), None)
        except Exception as error:  # any error: the waiting calls must fail
            self._pass_on(None, error)

    def _pass_on(self, pipe: Pipe | None, error: Exception | None) -> None:
        with self._over:
            if self.over:
                return
            self._pipe, self._error = pipe, error
            notes, self._notes = self._notes, []
            self._over.notify_all()
        for call in self._calls.numbers:  # no more are added
            entry = self._begin_to_pass(call)
            if entry is None:
                continue
            message, reply, at = entry
            if pipe is None:
                deliver(reply, error or TimeoutError())
                continue
            try:
                pipe.post(message, reply, at)
            except HoldfastError as refused:
                deliver(reply, refused.with_traceback(None))  # else it keeps this frame
        self._begin_to_pass(0)  # no call has this number
        if pipe is not None:
            for note in notes:
                pipe.transmit(note)

    def _begin_to_pass(self, call: int) -> _Waiting | None:
        """Remove a waiting call, to pass it on. The one before it has been passed on."""
        with self._over:
            self._passing = call
            self._over.notify_all()
            return self._calls.remove(call)
