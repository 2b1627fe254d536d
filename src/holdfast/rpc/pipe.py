"""Pipelined calls over one link: many are under way at once, few system calls carry them.

Whoever waits for an answer reads the link, for everybody: the common wait costs no hand-over
between threads. When nobody waits, the reader of last resort does (`Readers`), a thread that all
pipes of an agent share, so that callbacks run and deadlines pass without anybody's help.

Sending is put off while something is under way, since its answer will bring somebody here soon:
what has gathered by then goes out at once. It is never put off for longer than `PUT_OFF_S`, and not
at all when somebody waits.

Guarantees
    PI-1  Every call that was posted is completed exactly once: answered, expired, or lost.
    PI-2  At most one thread reads the link at a time, and at most one writes.
    PI-3  A message is sent within `PUT_OFF_S` of being posted, if the peer takes it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.rpc.link import Link
from holdfast.rpc.messages import Message

__all__ = ["PUT_OFF_S", "Pipe", "Readers", "Reply"]

PUT_OFF_S = 0.001
TICK_S = 0.02
"""How late a deadline may be noticed."""
_GATHER_BYTES = 32 * 1024
_GATHER_MESSAGES = 64

NEVER = float("inf")

Reply = Callable[[Message | Exception], None]
"""Hears the answer, or why there will be none. Must not block."""


class Pipe:
    """The asynchronous calls to one peer."""

    def __init__(self, link: Link, readers: Readers, lost: Callable[[OSError], Exception]) -> None:
        self._link = link
        self._readers = readers
        self._lost_error = lost
        # Guards what follows; never held while reading, sending or completing.
        self._lock = threading.Lock()
        self._open: dict[int, tuple[Reply, float]] = {}
        self._expire_at = NEVER
        self._out: list[Message] = []
        self._out_bytes = 0
        self._sending = False
        self._lost: Exception | None = None
        # Held by the thread that reads; those that wait meanwhile are told when it stops.
        self._reading = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._waiting = 0

    def fileno(self) -> int:
        """Return the descriptor of the link."""
        return self._link.fileno()

    def post(self, message: Message, reply: Reply, expire_at: float = NEVER) -> None:
        """Send a request, soon; `reply` hears what comes of it. Does not block for the answer.

        After `expire_at`, on the monotonic clock, it hears TimeoutError.
        """
        first = at_once = False
        with self._lock:
            if self._lost is None:
                first = not self._open
                self._open[message.call] = (reply, expire_at)
                self._expire_at = min(self._expire_at, expire_at)
                self._out.append(message)
                self._out_bytes += len(message.body)
                full = len(self._out) >= _GATHER_MESSAGES or self._out_bytes >= _GATHER_BYTES
                at_once = first or full or bool(message.buffers)
            lost = self._lost
        if lost is not None:
            reply(lost)
            return
        if at_once:
            self.flush()
        if first:
            self._readers.arm(self)

    def note(self, message: Message) -> None:
        """Send a message that is not answered."""
        with self._lock:
            if self._lost is not None:
                return
            self._out.append(message)
        self.flush()

    def forget(self, call: int) -> Reply | None:
        """Give up waiting for an answer; return who would have heard it, None if he has."""
        with self._lock:
            found = self._open.pop(call, None)
        return None if found is None else found[0]

    def expire(self, now: float) -> None:
        """Tell those whose time is up."""
        if now < self._expire_at:
            return
        with self._lock:
            late = [call for call, (_, at) in self._open.items() if at <= now]
            replies = [self._open.pop(call)[0] for call in late]
            self._expire_at = min((at for _, at in self._open.values()), default=NEVER)
            self._turn.notify_all()
        for reply in replies:
            reply(TimeoutError())

    @property
    def busy(self) -> bool:
        """Whether calls are under way."""
        return bool(self._open)

    @property
    def puts_off(self) -> bool:
        """Whether messages wait to be sent."""
        return bool(self._out)

    def flush(self) -> None:
        """Send what is put off. A thread that finds another one sending leaves it to that."""
        while True:
            with self._lock:
                if self._sending or not self._out or self._lost is not None:
                    return
                batch, self._out, self._out_bytes = self._out, [], 0
                self._sending = True
            try:
                self._link.send_all(batch)
            except OSError as error:
                self._lose(error)
            finally:
                with self._lock:
                    self._sending = False

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Read until `done()` or the deadline: who waits works for everybody."""
        while not done():
            self.flush()
            if self._reading.acquire(blocking=False):
                try:
                    self._readers.disarm(self)
                    while not done() and not deadline.passed() and self._lost is None:
                        self._read(deadline)
                finally:
                    self._reading.release()
                    self._pass_on()
            else:
                with self._turn:
                    if not done() and self._reading.locked():
                        self._waiting += 1
                        self._turn.wait(deadline.sooner(0.05).remaining())
                        self._waiting -= 1
            if deadline.passed() or self._lost is not None:
                return

    def read_for_others(self) -> None:
        """Read what is there, for those who do not wait. The reader of last resort calls it."""
        self.flush()
        if self._reading.acquire(blocking=False):
            try:
                self._read(Deadline.after(0))
            finally:
                self._reading.release()
                self._pass_on()

    def close(self, error: Exception) -> None:
        """End it: every open call hears this."""
        self._lose(error)
        self._link.close()

    @property
    def lost(self) -> Exception | None:
        """Why nothing can be sent any more, None while it can."""
        return self._lost

    # Reading.

    def _read(self, deadline: Deadline) -> None:
        """Read and complete what the link brings at once; wait for the first until the deadline."""
        link = self._link
        try:
            if not link.ready():
                wait_s = deadline.remaining()
                if not select.select([link], [], [], wait_s)[0]:
                    return
            while True:
                self._complete(link.receive())
                if not link.ready():
                    return
        except OSError as error:
            self._lose(error)

    def _complete(self, message: Message) -> None:
        with self._lock:
            found = self._open.pop(message.call, None)
            if self._waiting:
                self._turn.notify_all()
        if found is not None:  # else it has been given up
            found[0](message)

    def _pass_on(self) -> None:
        """Let somebody else read: one who waits, or the reader of last resort."""
        with self._lock:
            under_way = bool(self._open)
            if self._waiting:
                self._turn.notify_all()
                return
        if under_way:
            self.flush()
            self._readers.arm(self)

    def _lose(self, error: Exception) -> None:
        with self._lock:
            if self._lost is not None:
                return
            self._lost = self._lost_error(error) if isinstance(error, OSError) else error
            replies, self._open = [reply for reply, _ in self._open.values()], {}
            self._out = []
            self._turn.notify_all()
        self._readers.drop(self)
        for reply in replies:
            reply(self._lost)


class Readers:
    """The reader of last resort, and the keeper of deadlines: one thread for all pipes.

    It sleeps while nothing is under way.
    """

    def __init__(self, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._epoll.register(self._woken, select.EPOLLIN)
        self._lock = threading.Lock()
        self._pipes: dict[int, Pipe] = {}
        self._asleep = True
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def arm(self, pipe: Pipe) -> None:
        """Read this pipe when something comes, since nobody else does."""
        fd = pipe.fileno()
        with self._lock:
            known = self._pipes.get(fd) is pipe
            self._pipes[fd] = pipe
            wake, self._asleep = self._asleep, False
            try:
                if known:
                    self._epoll.modify(fd, _ONCE)
                else:
                    self._epoll.register(fd, _ONCE)
            except (OSError, ValueError):
                return  # closed meanwhile: whoever closed it has told everybody
        if wake:
            self._poke()

    def disarm(self, pipe: Pipe) -> None:
        """Leave this pipe alone: somebody reads it."""
        with contextlib.suppress(OSError, ValueError):
            self._epoll.modify(pipe.fileno(), 0)

    def drop(self, pipe: Pipe) -> None:
        """Forget a pipe that is over."""
        with self._lock:
            for fd in [fd for fd, known in self._pipes.items() if known is pipe]:
                del self._pipes[fd]
                with contextlib.suppress(OSError, ValueError):
                    self._epoll.unregister(fd)

    def close(self) -> None:
        """End the thread. Pipes must have been closed before."""
        self._closing = True
        self._poke()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
            self._epoll.close()
            self._wake.close()
            self._woken.close()

    def _poke(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def _run(self) -> None:
        while not self._closing:
            with self._lock:
                self._asleep = True  # before looking: what comes after the look wakes us
            busy = [pipe for pipe in list(self._pipes.values()) if pipe.busy]
            if busy:
                self._asleep = False
            put_off = any(pipe.puts_off for pipe in busy)
            patience = None if not busy else PUT_OFF_S if put_off else TICK_S
            for fd, _ in self._epoll.poll(patience):
                pipe = self._pipes.get(fd)
                if pipe is not None:
                    pipe.read_for_others()
                else:
                    with contextlib.suppress(OSError):
                        self._woken.recv(4096)
            now = self._clock.monotonic()
            for pipe in busy:
                pipe.flush()
                pipe.expire(now)


_ONCE = select.EPOLLIN | select.EPOLLONESHOT
