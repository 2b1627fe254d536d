"""Pipelined calls over one connection: many are under way at once, few system calls carry them.

A thread that waits for a reply reads the connection for all calls: the common wait needs no
hand-over between threads. When no thread waits, the background reader (`BackgroundReader`) reads.
All pipes of an agent share it, so callbacks run and deadlines expire without a waiting thread. If
a thread has waited recently, the background reader first holds back for about `PUT_OFF_S`: that
thread will most likely wait again, and two threads that read in turns are slower than one.

Messages are batched while a call is under way: its reply soon makes a thread read here, and that
thread sends the batch. After a large batch, messages are batched also when no call is under way,
since more most likely follow. A message is never delayed for longer than about `PUT_OFF_S`, and
not at all when a thread waits.

Only `drive` blocks for the peer, and only until its deadline: a peer that neither reads nor writes
does not delay calls to other peers.

The thread that reads runs the callbacks of the replies, and a callback may wait for something else.
Before it blocks, the thread stops reading (`client/blocking.py`), and another one continues there.

A signal handler or a finalizer run by the garbage collector may post a call at any moment, on a
thread that is executing any line of this file. So the lock is reentrant, and the state that it
guards is consistent whenever code under the lock calls a function or creates an object. The
interrupted thread sends such a call, at the latest.

Guarantees
    PI-1  Every call that was posted is completed exactly once: by its reply, its deadline, or loss.
    PI-2  At most one thread reads the connection at a time, and at most one writes.
    PI-3  A message is sent soon after being posted (`PUT_OFF_S`), if the peer takes it.
    PI-4  At most CALLS_MAX calls and BYTES_MAX bytes of requests are under way (CA-2).
    PI-5  A callback that waits for another call, or for a future, delays no reply: other threads
          read meanwhile. Any number of such callbacks fits on the stack.
    PI-6  Code that interrupts a thread while it reads or sends here, and then waits for a call, is
          refused with UsageError: no other thread could continue.
    PI-7  After a call is given up or expires, no later change of its arguments is sent; large
          buffers that the peer fetches are sealed off before the call's callback runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import PeerViolation, UsageError
from holdfast.forks import in_child
from holdfast.rpc.client.background_reader import (
    ATTENDED_ROUNDS,
    PUT_OFF_S,
    TICK_S,
    BackgroundReader,
)
from holdfast.rpc.client.blocking import (
    WITHIN_MAX,
    leave_callbacks,
    pop_release,
    push_release,
    reading,
    within,
)
from holdfast.rpc.client.calls import BYTES_MAX, CALLS_MAX, OpenCalls
from holdfast.rpc.client.replies import NOT_DELIVERED, Reply
from holdfast.rpc.client.unsent import exposed, take_back, take_back_views
from holdfast.rpc.wire.codec import encode_small, views_of
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.messages import NEVER, Buffer, Message

__all__ = ["Pipe", "Reply"]

_GATHER_BYTES = 32 * 1024
_GATHER_MESSAGES = 32  # half a window of 64: the callee runs it while we encode the other half

_log = logging.getLogger("holdfast.rpc")


class _Batch(list[Buffer]):
    """The parts of messages to be sent together; `large` if a message has several parts."""

    large = False

    def joined(self) -> list[memoryview]:
        """Return all parts as one: much faster than `views_of`, which keeps large ones apart."""
        return [memoryview(b"".join(self))] if self else []


class Pipe:
    """The asynchronous calls to one peer."""

    def __init__(
        self,
        connection: Connection,
        background: BackgroundReader,
        lost: Callable[[OSError], Exception],
        clock: Clock = SYSTEM_CLOCK,
        *,
        calls_max: int = CALLS_MAX,
        bytes_max: int = BYTES_MAX,
        send: Callable[[Message], None] | None = None,
        receive: Callable[[Message], None] | None = None,
    ) -> None:
        self._connection = connection
        self._send_by, self._receive_by = send, receive  # see `client/transport.py`
        self._background = background
        self._lost_error = lost
        self._clock = clock
        # Guards what follows; never held while reading, sending or completing.
        self._lock = threading.RLock()
        self._calls = OpenCalls[Reply]("are under way to this worker", calls_max, bytes_max)
        self._exposed: dict[int, list[list[Buffer]]] = {}  # parts of the calls with buffers
        self._out = _Batch()
        self._out_bytes = 0
        self._burst = False  # whether the last batch was large
        self._sender = 0  # the thread that sends
        self._unsent: list[memoryview] = []  # belongs to it
        self.blocked = False
        """Whether the peer must read before more can be sent."""
        self.lost: Exception | None = None
        """Why nothing can be sent any more; None while the pipe works."""
        # Held by the thread that reads; waiting threads are notified when it stops.
        self._reading = threading.Lock()
        self._reader = 0
        # Whether a reading thread delivers replies, or has left some of them undelivered.
        self._unread = False
        # State for the background reader: has it registered this pipe; does it poll it; for how
        # many more rounds it holds back, because a thread has waited recently.
        self.known = self.armed = False
        self.attended = 0
        self._turn = threading.Condition(self._lock)
        self._waiting = 0
        in_child(self, Pipe._disable_in_child)

    def fileno(self) -> int:
        """Return the descriptor of the connection."""
        return self._connection.fileno()

    def post(self, message: Message, reply: Reply, expire_at: float = NEVER) -> None:
        """Send a request soon, and call `reply` with the outcome. Does not block.

        The outcome is TimeoutError after `expire_at` on the monotonic clock. Raise Overloaded if
        too much is under way.
        """
        small = encode_small(message)
        size = message.size() if small is None else len(message.body)
        calls, call, send_by = self._calls, message.call, self._send_by
        with self._lock:
            lost, first = self.lost, not calls.open
            if lost is None:
                calls.add(call, reply, expire_at, size)
                if send_by is None:
                    if small is None:
                        self._put(message)
                    else:
                        self._out.append(small)
                    self._out_bytes += size
        if lost is not None:
            reply(lost)
            return
        if send_by is not None:
            try:
                send_by(message)
            except BaseException:  # it is refused
                calls.remove(call)
                raise
        if first:
            self._leave()
        elif self._background.slow:  # the thread that read the call before may have stopped
            self._background.wake()
        gathered = len(self._out) >= _GATHER_MESSAGES or self._out_bytes >= _GATHER_BYTES
        if gathered or (first and (not self._burst or self._background.slow)):
            self.flush()

    def _put(self, message: Message) -> None:
        """Batch a message that is large or has buffers. With the lock held."""
        parts: list[Buffer] = []
        try:
            self._connection.put(message, parts)
        except BaseException:  # it is refused
            self._calls.remove(message.call)
            raise
        if message.buffers and message.call in self._calls.open:  # they are the caller's memory
            several = self._exposed.get(message.call, ())
            self._exposed[message.call] = [*several, exposed(parts)]
        batch = self._out
        batch += parts
        batch.large = True

    def transmit(self, message: Message) -> None:
        """Send a message now that is not added to the table: it has no reply, or is in it."""
        with self._lock:
            if self.lost is not None:
                return
            self._put(message)
        self.flush()

    def expire(self, now: float) -> None:
        """Complete the expired calls with TimeoutError."""
        if now < self._calls.soonest:
            return
        if self._reader == threading.get_ident():
            self._unread = True  # to be safe: a callback may let another thread read
        for call in self._calls.late(now):
            self._withdraw(call)
            self.complete(call, TimeoutError())
        # Only now: if one of these callbacks waits, another thread must expire the other calls.
        with self._lock:
            self._calls.look_again()

    def give_up(self, call: int) -> None:
        """Forget a call, and send nothing more of it: its arguments may change."""
        self._calls.remove(call)
        self._withdraw(call)

    def _withdraw(self, call: int) -> None:
        several = self._exposed.pop(call, None)
        if several is None or self._connection.seal_off(call):
            return
        with self._turn:
            while self._sender not in {0, threading.get_ident()}:  # a sender never blocks
                self._turn.wait(PUT_OFF_S)
            for parts in several:
                if not take_back(parts, self._out) and not self._sender:  # unless we interrupt it
                    take_back_views(parts, self._unsent)
            self.blocked = self.blocked and bool(self._unsent)

    @property
    def busy(self) -> bool:
        """Whether calls are under way."""
        return bool(self._calls.open)

    @property
    def is_read(self) -> bool:
        """Whether a thread reads it."""
        return self._reading.locked()

    @property
    def under_way(self) -> tuple[int, int]:
        """How many calls, and how many bytes of requests, have no reply yet."""
        with self._lock:
            return len(self._calls.open), self._calls.count_bytes()

    @property
    def puts_off(self) -> bool:
        """Whether batched messages wait to be sent, and the peer does not delay them."""
        return bool(self._out) and not self.blocked

    def flush(self) -> None:
        """Send the batched messages, as far as the peer accepts them without blocking.

        If another thread is sending, leave them to it.
        """
        while self._out or self._unsent:  # also what other threads have added meanwhile
            here = threading.get_ident()
            with self._lock:
                if self._sender or self.lost is not None or not (self._out or self._unsent):
                    return
                self._sender = here
                out, self._out = self._out, _Batch()
                self._out_bytes = 0
                self._burst = 2 * len(out) > _GATHER_MESSAGES
            blocked = False
            try:
                self._unsent += views_of(out) if out.large else out.joined()
                blocked = not self._connection.send_some(self._unsent)
            except OSError as error:
                self._break(error)
            except BaseException:  # such as an interrupt: how much was sent is unknown
                self._break(ConnectionError("Connection closed by peer (sending was interrupted)"))
                raise
            finally:
                self.blocked = blocked
                self._sender = 0  # last: from now on other threads may send
            if blocked:
                self._background.arm(self)
                return

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Read until `done()` or the deadline, and complete the calls of all threads."""
        here = threading.get_ident()
        before = within.get(here, 0)
        last = NEVER if deadline.at is None else deadline.at
        while not done():
            if self.lost is not None:
                self._fail_all(self.lost)
                return
            if self._sender == here:
                raise UsageError(_INTERRUPTED)
            if self._out or self._unsent:
                self.flush()
            deep = within.get(here, 0) >= WITHIN_MAX
            if not deep and self._reading.acquire(blocking=False):
                self._reader = here
                reading[here] = self
                self.attended = ATTENDED_ROUNDS
                try:
                    if self.armed:
                        self._background.disarm(self)
                    while not done() and self.lost is None:
                        now = self._clock.monotonic()
                        if now >= last:
                            break
                        self._read(now, last)
                        if self._reader != here:
                            break
                finally:
                    self._stop_reading(here)
                    if within:
                        leave_callbacks(here, before)
            elif self._reader == here:
                raise UsageError(_INTERRUPTED)
            else:
                if deep:
                    self._background.hand(self)
                with self._turn:
                    self._waiting += 1  # before the check: a completion after it notifies us
                    try:
                        if not done() and (deep or self._reading.locked()) and self.lost is None:
                            self._turn.wait(deadline.sooner(TICK_S).remaining())
                    finally:
                        self._waiting -= 1
            if not done() and deadline.passed():
                return

    def read_for_others(self) -> None:
        """Read the replies that have arrived, without waiting. For the background reader."""
        self.flush()
        if self.lost is not None:
            self._fail_all(self.lost)
        elif self._reading.acquire(blocking=False):
            self._reader = here = threading.get_ident()
            reading[here] = self
            try:
                self._receive()
            finally:
                self._stop_reading(here)
                if within:
                    leave_callbacks(here, 0)

    def close(self, lost: Exception) -> None:
        """Fail every open call with this error. The owner closes the connection. Idempotent."""
        with self._lock:
            if self.lost is not None:
                return
            self.lost = lost
            self._out, self._unsent = _Batch(), []
            self._turn.notify_all()
        self._background.drop(self)
        self._connection.shut()  # wakes the thread that reads it
        self._fail_all(lost)

    def before_block(self) -> None:
        """Let another thread read if this one does, in a callback: it is about to block."""
        here = threading.get_ident()
        if self._unread and self._reader == here:  # else a read was interrupted: keep it (PI-6)
            self._stop_reading(here)
            within[here] = within.get(here, 0) + 1

    def _fail_all(self, lost: Exception) -> None:
        """Fail every open call. Waiting threads do this too, since a callback may block."""
        before = push_release(lambda: self._background.hand(self))
        try:
            for call in self._calls.numbers:
                self.complete(call, lost)
        finally:
            pop_release(before)

    def _disable_in_child(self) -> None:
        """Disable the copy in a forked child: the connection belongs to the parent."""
        self._lock = threading.RLock()  # another thread may have held the old one
        self._turn = threading.Condition(self._lock)
        if self.lost is None:
            why = "Connection closed by peer (this process has been forked)"
            self.lost = self._lost_error(ConnectionError(why))

    # Reading.

    def _read(self, now: float, last: float) -> None:
        """Wait briefly for replies, not beyond the time `last`, and complete their calls."""
        until = min(now + TICK_S, self._calls.soonest, last)
        self._receive(None if self._unread else until - now)
        if self.blocked:
            self.flush()
        if self._clock.monotonic() >= self._calls.soonest:
            self.expire(self._clock.monotonic())

    def _receive(self, wait_s: float | None = None) -> None:
        """Read the replies that have arrived and complete their calls, while this thread reads.

        With `wait_s`, first wait so long for a reply; or for the peer to read, if it must do so
        before more can be sent: other threads leave that to us.
        """
        connection, here = self._connection, threading.get_ident()
        receive_by, memory = self._receive_by, connection.peer_memory
        self._unread = False
        come = connection.come
        if wait_s is None:
            message = self._next(connection.advance)
        else:
            message = self._next(connection.advance_within, wait_s, self.blocked)
        while message is not None:
            self._unread = True
            if memory.due:
                for note in connection.due():
                    self.transmit(note)
            come.appendleft(message)
            while come and self._reader == here:
                message = come.popleft()
                if receive_by is None:
                    self.complete(message.call, message)
                else:
                    receive_by(message)
            if self._waiting:
                self._wake_waiting()
            if self._reader != here:
                return
            self._unread = False
            if connection.start == connection.end:
                return  # nearly always: all that was read has been decoded
            message = self._next(connection.here)

    def _next(self, read: Callable[..., Message | None], *args: float) -> Message | None:
        try:
            return read(*args)
        except OSError as error:
            self._break(error)
        except PeerViolation as error:
            self._break(ConnectionError(f"Connection closed by peer ({error})"))
        except BaseException:  # such as an interrupt: how much was read is unknown
            self._break(ConnectionError("Connection closed by peer (reading was interrupted)"))
            raise
        return None

    def complete(self, call: int, answer: Message | Exception) -> None:
        """Call the callback of a call, if this thread removes the call (CA-1)."""
        reply = self._calls.remove(call)
        if reply is None:
            return  # the call has been given up
        if self._exposed:
            self._exposed.pop(call, None)
        try:
            reply(answer)
        except Exception:
            _log.exception(NOT_DELIVERED)

    def _wake_waiting(self) -> None:
        """Let waiting threads look whether their calls are complete: once for many replies."""
        with self._turn:
            self._turn.notify_all()

    def _stop_reading(self, here: int) -> None:
        """Stop reading, if this thread reads: a waiting thread or the background reader goes on."""
        if self._reader != here:
            return
        unread = self._unread
        reading.pop(here, None)
        self._reader = 0
        self._reading.release()
        if self._waiting:
            self._wake_waiting()
        if self._calls.open and self.lost is None:
            # Even if a thread waits: its call may be complete, and then it does not read.
            if unread:
                self._background.hand(self)
            else:
                self._leave()

    def _leave(self) -> None:
        """Leave the replies to the background reader, unless a thread is likely to wait soon."""
        if not self.attended or not self.known:
            self._background.arm(self)
        elif self._background.slow:
            self._background.wake()

    def _break(self, error: OSError) -> None:
        """Close the pipe after its connection failed."""
        self.close(self._lost_error(error))


_INTERRUPTED = (
    "a signal handler, or a __del__, that has interrupted a call to this worker cannot wait for one"
)
