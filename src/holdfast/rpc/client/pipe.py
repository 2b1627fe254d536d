"""Pipelined calls over one connection: many are under way at once, few system calls carry them.

Whoever waits for an answer reads the connection, for everybody: the common wait costs no hand-over
between threads. When nobody waits, the reader of last resort does (`BackgroundReader`), a thread
that all pipes of an agent share, so that callbacks run and deadlines pass without anybody's help.
Where somebody has waited of late it holds back for about `PUT_OFF_S` each time: he will most likely
do so again, and two threads that read in turns would be slower than one.

Sending is put off while something is under way, since its answer will bring somebody here soon:
what has gathered by then goes out at once. After many that went out together it is put off also
when nothing is under way: most likely more follow. It is never put off for longer than about
`PUT_OFF_S`, and not at all when somebody waits.

Nothing here blocks for the peer's sake but `drive`, and that only until its deadline: a peer that
neither reads nor writes cannot hold up the calls to others.

Who reads tells those who are answered, and they may wait for something else then. Before they do,
whoever reads makes way (`client/blocking.py`): somebody else goes on, from where he stopped.

A signal handler, or what the garbage collector drops, may post a call at any moment, on a thread
that is in the midst of anything here. So the lock can be taken again by who has it, and whenever
something is called or made under it, what it guards is as it should be. Such a call is sent by the
one who was interrupted, at the latest.

Guarantees
    PI-1  Every call that was posted is completed exactly once: answered, expired, or lost.
    PI-2  At most one thread reads the connection at a time, and at most one writes.
    PI-3  A message is sent soon after being posted (`PUT_OFF_S`), if the peer takes it.
    PI-4  At most CALLS_MAX calls and BYTES_MAX bytes of requests are under way; what is more is
          refused with Overloaded. One request may be larger, if it is the only one.
    PI-5  A callback that waits for another call, or for a future, holds up no answer: other threads
          read meanwhile. However many such callbacks there are, the stack bears them.
    PI-6  Who interrupts this very thread while it reads or sends, and waits for a call, is refused
          with UsageError: nobody else could go on.
    PI-7  Of a call that is given up, or whose time is up, nothing is sent that changes after that;
          large buffers that the peer fetches are sealed off before anybody is told.
"""

from __future__ import annotations

import logging
import select
import threading
from collections import deque
from collections.abc import Callable

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import Overloaded, PeerViolation, UsageError
from holdfast.forks import in_child
from holdfast.rpc.client.background_reader import (
    ATTENDED_ROUNDS,
    PUT_OFF_S,
    TICK_S,
    BackgroundReader,
)
from holdfast.rpc.client.blocking import (
    WITHIN_MAX,
    is_deep,
    leave_callbacks,
    pop_release,
    push_release,
    reading,
    within,
)
from holdfast.rpc.client.replies import NOT_DELIVERED, Reply, fan_out
from holdfast.rpc.client.unsent import exposed, take_back, take_back_views
from holdfast.rpc.wire.connection import CORES, NEVER, Connection
from holdfast.rpc.wire.messages import Buffer, Message
from holdfast.rpc.wire.parts import views_of
from holdfast.rpc.wire.spin import SPINS, AdaptiveSpin

__all__ = ["BYTES_MAX", "CALLS_MAX", "NEVER", "Pipe", "Reply"]

CALLS_MAX = 1 << 16
BYTES_MAX = 1 << 30
_GATHER_BYTES = 32 * 1024
_GATHER_MESSAGES = 32  # half a window of 64: the callee works while the other half is made

_log = logging.getLogger("holdfast.rpc")


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
    ) -> None:
        self._connection = connection
        self._background = background
        self._lost_error = lost
        self._clock = clock
        self._calls_max, self._bytes_max = calls_max, bytes_max
        self._poll = select.poll()
        self._spin = AdaptiveSpin(CORES)
        # Guards what follows; never held while reading, sending or completing.
        self._lock = threading.RLock()
        self._open: dict[int, tuple[Reply, float, int]] = {}
        self._open_bytes = 0
        self._freed: deque[int] = deque()  # bytes of calls that are over, not yet taken off
        self._exposed: dict[int, list[list[Buffer]]] = {}  # parts of those that have buffers
        self._expire_at = NEVER
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._burst = False  # whether many went out together the last time
        self._sender = 0  # the thread that sends
        self._unsent: list[memoryview] = []  # belongs to it
        self._blocked = False
        self.lost: Exception | None = None
        """Why nothing can be sent any more, None while it can."""
        # Held by the thread that reads; those that wait meanwhile are told when it stops.
        self._reading = threading.Lock()
        self._reader = 0
        # Whether somebody who reads tells what came, or has left something untold.
        self._unread = False
        self._polled = 0
        # Of the reader of last resort: does it know of this pipe; does it hear what comes; for how
        # many more of its rounds is it to hold back, since somebody has waited.
        self.known = self.armed = False
        self.attended = 0
        self._turn = threading.Condition(self._lock)
        self._waiting = 0
        in_child(self, Pipe._disable_in_child)

    def fileno(self) -> int:
        """Return the descriptor of the connection."""
        return self._connection.fileno()

    def post(self, message: Message, reply: Reply, expire_at: float = NEVER) -> None:
        """Send a request, soon; `reply` hears what comes of it. Does not block.

        After `expire_at`, on the monotonic clock, it hears TimeoutError. Overloaded if too much is
        under way.
        """
        size = message.size() if message.buffers else len(message.body)
        calls, call = self._open, message.call
        parts: list[Buffer] = []
        with self._lock:
            lost, first = self.lost, not calls
            if lost is None:
                open_bytes = (self._count_bytes() if self._freed else self._open_bytes) + size
                if len(calls) >= self._calls_max or size < open_bytes > self._bytes_max:
                    raise Overloaded(
                        f"{len(calls)} calls and {open_bytes - size} bytes are under way to this "
                        f"worker: at most {self._calls_max} and {self._bytes_max}"
                    )
                self._connection.put(message, parts)  # may refuse it
                self._open_bytes += size
                self._out_bytes += size
                if call in calls:  # sent again, under the same number: one answer is for both
                    known = calls.pop(call, None)
                    if known is not None:
                        reply, size = fan_out(known[0], reply), size + known[2]
                calls[call] = (reply, expire_at, size)
                if expire_at < self._expire_at:  # noqa: PLR1730  # min is slower
                    self._expire_at = expire_at
                if message.buffers:  # they are its caller's memory
                    self._exposed[call] = [*self._exposed.get(call, ()), exposed(parts)]
                self._out += parts  # whole, and when its answer is expected
        if lost is not None:
            reply(lost)
            return
        gathered = len(self._out) >= _GATHER_MESSAGES or self._out_bytes >= _GATHER_BYTES
        if gathered or (first and (not self._burst or self._background.slow)):
            self.flush()
        if first:
            self._leave()
        elif self._background.slow:  # who read the one before may have left meanwhile
            self._background.wake()

    def _count_bytes(self) -> int:
        """Return how many bytes are under way. With the lock held, which who completes does not."""
        while self._freed:
            freed = self._freed.popleft()
            self._open_bytes -= freed
        return self._open_bytes

    def note(self, message: Message) -> None:
        """Send a message that is not answered."""
        parts: list[Buffer] = []
        with self._lock:
            if self.lost is not None:
                return
            self._connection.put(message, parts)
            self._out += parts
        self.flush()

    def expire(self, now: float) -> None:
        """Tell those whose time is up."""
        if now < self._expire_at:
            return
        calls = self._open.copy()  # at once: others take calls out without the lock
        late = [call for call, (_, at, _) in calls.items() if at <= now]
        if self._reader == threading.get_ident():
            self._unread = True  # for all that we know: who is told may let others read
        for call in late:
            self._withdraw(call)
            self._complete(call, TimeoutError())
        # Only now: whoever looks while one of them is told, and waits, tells the others.
        with self._lock:
            self._expire_at = NEVER
            calls = self._open.copy()
        soonest = min((at for _, at, _ in calls.values()), default=NEVER)
        with self._lock:
            if soonest < self._expire_at:  # noqa: PLR1730  # min is a call
                self._expire_at = soonest

    def give_up(self, call: int) -> None:
        """Send nothing more of a call, and tell no more of it: its arguments may change."""
        found = self._open.pop(call, None)
        if found is not None:
            self._freed.append(found[2])
        self._withdraw(call)

    def _withdraw(self, call: int) -> None:
        several = self._exposed.pop(call, None)
        if several is None or self._connection.seal_off(call):
            return
        with self._turn:
            while self._sender not in {0, threading.get_ident()}:  # a sender does not block
                self._turn.wait(PUT_OFF_S)
            for parts in several:
                if not take_back(parts, self._out) and not self._sender:  # unless we interrupt it
                    take_back_views(parts, self._unsent)
            self._blocked = self._blocked and bool(self._unsent)

    @property
    def busy(self) -> bool:
        """Whether calls are under way."""
        return bool(self._open)

    @property
    def is_read(self) -> bool:
        """Whether somebody reads it."""
        return self._reading.locked()

    @property
    def under_way(self) -> tuple[int, int]:
        """How many calls, and how many bytes of requests, are not answered yet."""
        with self._lock:
            return len(self._open), self._count_bytes()

    @property
    def puts_off(self) -> bool:
        """Whether messages wait to be sent, and not for the peer."""
        return bool(self._out) and not self._blocked

    @property
    def blocked(self) -> bool:
        """Whether the peer must read before more can be sent."""
        return self._blocked

    def flush(self) -> None:
        """Send what is put off, as far as the peer takes it at once.

        A thread that finds another one sending leaves it to that.
        """
        while self._out or self._unsent:  # also what others have left to us meanwhile
            here = threading.get_ident()
            with self._lock:
                if self._sender or self.lost is not None or not (self._out or self._unsent):
                    return
                self._sender = here
                out, self._out = self._out, []
                self._out_bytes = 0
                self._burst = 2 * len(out) > _GATHER_MESSAGES
            blocked = False
            try:
                self._unsent += views_of(out)
                blocked = not self._connection.send_some(self._unsent)
            except OSError as error:
                self._break(error)
            except BaseException:  # such as an interrupt: nobody knows how far it got
                self._break(ConnectionError("Connection closed by peer (sending was interrupted)"))
                raise
            finally:
                self._blocked = blocked
                self._sender = 0  # last: from now on others may send
            if blocked:
                self._background.arm(self)
                return

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Read until `done()` or the deadline: who waits works for everybody."""
        here = threading.get_ident()
        before, full = within.get(here, 0), is_deep()
        while not done():
            if self.lost is not None:
                self._tell_lost(self.lost)
                return
            if self._sender == here:
                raise UsageError(_INTERRUPTED)
            self.flush()
            deep = full or within.get(here, 0) >= WITHIN_MAX
            if not deep and self._reading.acquire(blocking=False):
                self._reader = here
                reading[here] = self
                self.attended = ATTENDED_ROUNDS
                try:
                    if self.armed:
                        self._background.disarm(self)
                    while not done() and self.lost is None and not deadline.passed():
                        self._read(deadline)
                        if self._reader != here:
                            break
                finally:
                    self._stop_reading(here)
                    leave_callbacks(here, before)
            elif self._reader == here:
                raise UsageError(_INTERRUPTED)
            else:
                if deep:
                    self._background.hand(self)
                with self._turn:
                    self._waiting += 1  # before looking: who completes something then tells us
                    try:
                        if not done() and (deep or self._reading.locked()) and self.lost is None:
                            self._turn.wait(deadline.sooner(TICK_S).remaining())
                    finally:
                        self._waiting -= 1
            if deadline.passed():
                return

    def read_for_others(self) -> None:
        """Read what is there, for those who do not wait. The reader of last resort calls it."""
        self.flush()
        if self.lost is not None:
            self._tell_lost(self.lost)
        elif self._reading.acquire(blocking=False):
            self._reader = here = threading.get_ident()
            reading[here] = self
            try:
                self._receive()
            finally:
                self._stop_reading(here)
                leave_callbacks(here, 0)

    def close(self, lost: Exception) -> None:
        """End it: every open call hears this. The connection is left to who gave it. Idempotent."""
        with self._lock:
            if self.lost is not None:
                return
            self.lost = lost
            self._out, self._unsent = [], []
            self._turn.notify_all()
        self._background.drop(self)
        self._connection.shut()  # wakes who reads it
        self._tell_lost(lost)

    def before_block(self) -> None:
        """Let another thread read, if ours does and is telling what came: it is about to block."""
        here = threading.get_ident()
        if self._unread and self._reader == here:  # else it is interrupted: nobody could go on
            self._stop_reading(here)
            within[here] = within.get(here, 0) + 1

    def _tell_lost(self, lost: Exception) -> None:
        """Tell every open call that it is over. Who waits helps: a callback may wait for others."""
        before = push_release(lambda: self._background.hand(self))
        try:
            for call in list(self._open):
                self._complete(call, lost)
        finally:
            pop_release(before)

    def _disable_in_child(self) -> None:
        """Disable the copy of a forked child: the connection is its parent's."""
        self._lock = threading.RLock()  # another thread may have held the old one
        self._turn = threading.Condition(self._lock)
        if self.lost is None:
            why = "Connection closed by peer (this process has been forked)"
            self.lost = self._lost_error(ConnectionError(why))

    # Reading.

    def _read(self, deadline: Deadline) -> None:
        """Complete what the connection brings; wait for it a while, but not beyond the deadline."""
        now = self._clock.monotonic()
        until = min(now + TICK_S, self._expire_at, NEVER if deadline.at is None else deadline.at)
        if not self._unread:
            fd = self._connection.fileno()
            if fd < 0:
                return
            # Also when others may send again, since they leave it to us.
            events = _IN_OR_OUT if self._blocked else _IN
            if events != self._polled:
                self._polled = events
                self._poll.register(fd, events)
            came = self._await(until - now)
            self.expire(self._clock.monotonic())
            if not came:
                return
            if self._blocked:
                self.flush()
        self._receive()

    def _await(self, seconds: float) -> list[tuple[int, int]]:
        """Wait for a while until the connection can be read or written to; return the events."""
        eager, poll = self._spin, self._poll.poll
        if eager.now:
            came = next(filter(None, map(poll, [0] * SPINS)), [])
            eager.record_spin(bool(came))
            if came:
                return came
        begun = self._clock.monotonic()
        came = poll(max(0.0, seconds) * 1000)
        eager.record_sleep(self._clock.monotonic() - begun)
        return came

    def _receive(self) -> None:
        """Read and complete what is there, unless somebody else reads by then."""
        connection, here = self._connection, threading.get_ident()
        if self._reader != here:  # one whose time was up has made us make way
            return
        self._unread = False
        come = connection.come
        message = self._next(connection.advance)
        while message is not None:
            self._unread = True
            if connection.owes:
                for note in connection.due():
                    self.note(note)
            self._complete(message.call, message)
            while come and self._reader == here:
                message = come.popleft()
                self._complete(message.call, message)
            if self._reader != here:
                return
            self._unread = False
            message = self._next(connection.here)

    def _next(self, read: Callable[[], Message | None]) -> Message | None:
        try:
            return read()
        except OSError as error:
            self._break(error)
        except PeerViolation as error:
            self._break(ConnectionError(f"Connection closed by peer ({error})"))
        except BaseException:  # such as an interrupt: nobody knows how far it got
            self._break(ConnectionError("Connection closed by peer (reading was interrupted)"))
            raise
        return None

    def _complete(self, call: int, answer: Message | Exception) -> None:
        """Tell who waits for a call; whoever takes it out of those under way does."""
        found = self._open.pop(call, None)
        if found is None:
            return  # it has been given up
        reply, _, size = found
        self._freed.append(size)
        if self._exposed:
            self._exposed.pop(call, None)
        try:
            reply(answer)
        except Exception:
            _log.exception(NOT_DELIVERED)
        if self._waiting:
            with self._turn:
                self._turn.notify_all()

    def _stop_reading(self, here: int) -> None:
        """Let somebody else read, if we do: one who waits, or the reader of last resort."""
        if self._reader != here:
            return
        unread = self._unread
        reading.pop(here, None)
        self._reader = 0
        self._reading.release()
        if self._waiting:
            with self._turn:
                self._turn.notify_all()
        if self._open and self.lost is None:
            # Even if somebody waits: it may be done, and leave without a look at the others.
            if unread:
                self._background.hand(self)
            else:
                self._leave()

    def _leave(self) -> None:
        """Leave the answers to the reader of last resort, unless somebody comes for them soon."""
        if not self.attended or not self.known:
            self._background.arm(self)
        elif self._background.slow:
            self._background.wake()

    def _break(self, error: OSError) -> None:
        """Hear that the connection is of no use any more."""
        self.close(self._lost_error(error))


_INTERRUPTED = (
    "a signal handler, or a __del__, that has interrupted a call to this worker cannot wait for one"
)
_IN, _IN_OR_OUT = select.POLLIN, select.POLLIN | select.POLLOUT
