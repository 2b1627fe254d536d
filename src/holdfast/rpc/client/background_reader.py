"""The background reader: one thread that reads all pipes of an agent and enforces deadlines.

It reads a pipe that has calls under way while no thread waits for them, sends batched messages, and
expires calls. If a thread has waited on a pipe recently, it holds back at first (see
`client/pipe.py`). It sleeps while no call is under way.

Before a callback blocks (`client/blocking.py`), another thread becomes the background reader, and
this one ends when the callback returns. So there is one thread for each callback that waits, and
one more.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.rpc.client.blocking import push_release

if TYPE_CHECKING:
    from holdfast.rpc.client.pipe import Pipe

__all__ = ["ATTENDED_ROUNDS", "PUT_OFF_S", "TICK_S", "BackgroundReader", "Expiring"]

PUT_OFF_S = 0.001
TICK_S = 0.02
"""How late a deadline may be noticed, or a reply that another thread has read."""
ATTENDED_ROUNDS = 20
"""How many rounds, one every PUT_OFF_S, a thread counts as having waited recently."""
_END_WITHIN_S = 5.0
_ONCE = select.EPOLLIN | select.EPOLLONESHOT

_log = logging.getLogger("holdfast.rpc")


class Expiring(Protocol):
    """An object other than a pipe whose calls have deadlines."""

    def expire(self, now: float) -> bool:
        """End the expired calls; return whether to call this again."""
        ...


class BackgroundReader:
    """The thread, and the pipes and deadlines that it serves."""

    # The lock is reentrant, for signal handlers and finalizers (see `client/pipe.py`).

    def __init__(self, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._epoll.register(self._woken, select.EPOLLIN)
        self._lock = threading.RLock()
        self._pipes: dict[int, Pipe] = {}
        self._ready: deque[Pipe] = deque()  # the thread must read these now
        self._timed: dict[Expiring, int] = {}  # and how often each was passed to `time`
        self._asleep = True
        self._closing = False
        self.slow = True
        """Whether it must be woken to send batched messages; read without the lock."""
        self._name = name
        self._threads: list[threading.Thread] = []  # the last one is the current reader
        self._begin()

    def arm(self, pipe: Pipe) -> None:
        """Read this pipe when data arrives, since no other thread reads it."""
        with self._lock:
            fd = pipe.fileno()
            if pipe.lost is not None or fd < 0 or self._closing:
                return  # the thread that closed the pipe fails its calls
            known = self._pipes.get(fd) is pipe
            self._pipes[fd] = pipe
            wake, self._asleep = self._asleep, False
            events = _ONCE | select.EPOLLOUT if pipe.blocked else _ONCE
            pipe.known = pipe.armed = True
            if not known:
                self._epoll.register(fd, events)
            else:
                with contextlib.suppress(FileNotFoundError):  # we interrupt the code that registers
                    self._epoll.modify(fd, events)
        if wake:
            self._poke()

    def disarm(self, pipe: Pipe) -> None:
        """Stop polling this pipe: another thread reads it."""
        with self._lock:
            fd = pipe.fileno()
            pipe.armed = False
            if self._pipes.get(fd) is pipe and not self._closing:
                with contextlib.suppress(FileNotFoundError):
                    self._epoll.modify(
                        fd, select.EPOLLONESHOT
                    )  # without it, epoll reports a hang-up for ever

    def drop(self, pipe: Pipe) -> None:
        """Forget a closed pipe, before its connection is closed."""
        with self._lock:
            for fd in list(self._pipes):
                if self._pipes.get(fd) is pipe:
                    del self._pipes[fd]
                    with contextlib.suppress(OSError, ValueError):
                        self._epoll.unregister(fd)

    def hand(self, pipe: Pipe) -> None:
        """Read this pipe now: replies have arrived that were not delivered."""
        self._ready.append(pipe)
        self._poke()

    def time(self, timed: Expiring) -> None:
        """Call `expire` of this object regularly, until that returns False."""
        with self._lock:
            self._timed[timed] = self._timed.get(timed, 0) + 1
        self._poke()

    def wake(self) -> None:
        """Check for batched messages now."""
        self.slow = False
        self._poke()

    def close(self) -> None:
        """End the threads. Pipes must have been closed before. Idempotent."""
        with self._lock:
            self._closing = True
        self._poke()
        limit = Deadline.after(_END_WITHIN_S)
        for thread in tuple(self._threads):
            if thread is not threading.current_thread():
                thread.join(limit.remaining())

    def _poke(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def _begin(self) -> None:
        """Start another thread, which becomes the current reader."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except BaseException:
            self._threads.remove(thread)
            raise

    def _is_mine(self) -> bool:
        """Return whether this thread is the current reader."""
        return self._threads[-1] is threading.current_thread()

    def _before_block(self) -> None:
        """Hand over to another thread: this one is about to block in a callback."""
        with self._lock:
            if not self._is_mine() or self._closing:
                return
            try:
                self._begin()
            except RuntimeError as error:  # this thread continues when the callback returns
                _log.warning("a thread could not be started: %s", error)
        self._poke()  # for the rest of this round

    def _run(self) -> None:
        push_release(self._before_block)
        quiet = 0
        try:
            while self._is_mine() and not self._closing:
                try:
                    quiet = self._round(quiet)
                except Exception:  # at most one pipe is lost; the others need this thread
                    _log.exception("the background reader failed")
        finally:
            with self._lock:
                if self._is_mine():
                    self._closing = True
                    self._epoll.close()
                    self._wake.close()
                    self._woken.close()
                else:
                    self._threads.remove(threading.current_thread())

    def _round(self, quiet: int) -> int:
        """Wait for work and do it; return for how many rounds no message was batched."""
        with self._lock:
            self._asleep = True
            pipes, timed = list(self._pipes.values()), list(self._timed.items())
        busy = [pipe for pipe in pipes if pipe.busy]
        if busy or timed:
            self._asleep = False
        soon = [pipe for pipe in busy if pipe.puts_off or self._holds_back(pipe)]
        quiet = 0 if soon else quiet + 1
        if busy and quiet < ATTENDED_ROUNDS:
            self.slow = False
            timeout_s: float | None = PUT_OFF_S
        elif not self.slow:
            self.slow = True
            return quiet  # check once more: from now on `wake` is called
        else:
            timeout_s = TICK_S if busy or timed else None
        for fd, _ in self._epoll.poll(timeout_s):
            pipe = self._pipes.get(fd)
            if pipe is not None:
                pipe.armed = False
                self._ready.append(pipe)
            else:
                with contextlib.suppress(OSError):
                    self._woken.recv(4096)
        while self._ready and self._is_mine():
            self._ready.popleft().read_for_others()
        now = self._clock.monotonic()
        for pipe in busy:
            pipe.flush()
            pipe.expire(now)
        for each, times in timed:
            if not each.expire(now):
                with self._lock:
                    if self._timed.get(each) == times:  # else `time` was called again just now
                        del self._timed[each]
        return quiet

    def _holds_back(self, pipe: Pipe) -> bool:
        """Ensure that a thread reads a pipe; return whether to check it again soon."""
        if pipe.is_read:
            return False
        attended = pipe.attended
        if attended:
            pipe.attended = attended - 1
        if pipe.armed:
            return False
        if attended == ATTENDED_ROUNDS:
            return True
        self.arm(pipe)
        return False
