"""The reader of last resort, and the keeper of deadlines: one thread for all pipes of an agent.

It reads a pipe on which calls are under way while nobody waits for them, sends what was put off,
and tells calls that their time is up. Where somebody has waited of late it holds back at first
(see `client/pipe.py`). It sleeps while nothing is under way.

A callback that waits for something makes way (`client/blocking.py`): then another thread takes
over, and this one ends when the callback does. So there are as many threads as callbacks that wait,
and one more.
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
"""How late a deadline may be noticed, or an answer that came by another way."""
ATTENDED_ROUNDS = 20
"""For how many rounds it counts that somebody has waited: as long as it looks every PUT_OFF_S."""
_END_WITHIN_S = 5.0
_ONCE = select.EPOLLIN | select.EPOLLONESHOT

_log = logging.getLogger("holdfast.rpc")


class Expiring(Protocol):
    """Something else whose calls have deadlines."""

    def expire(self, now: float) -> bool:
        """Tell those whose time is up; say whether to ask again."""
        ...


class BackgroundReader:
    """The thread, and what it looks after."""

    # The lock can be taken again by who has it, for the sake of those who interrupt
    # (`client/pipe.py`).

    def __init__(self, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._epoll.register(self._woken, select.EPOLLIN)
        self._lock = threading.RLock()
        self._pipes: dict[int, Pipe] = {}
        self._ready: deque[Pipe] = deque()  # to be read now, by the thread
        self._timed: dict[Expiring, int] = {}  # and how often each was given
        self._asleep = True
        self._closing = False
        self.slow = True
        """Whether it must be woken for what is put off; read without the lock."""
        self._name = name
        self._threads: list[threading.Thread] = []  # the last one is the thread
        self._begin()

    def arm(self, pipe: Pipe) -> None:
        """Read this pipe when something comes, since nobody else does."""
        with self._lock:
            fd = pipe.fileno()
            if pipe.lost is not None or fd < 0 or self._closing:
                return  # whoever ended it tells everybody
            known = self._pipes.get(fd) is pipe
            self._pipes[fd] = pipe
            wake, self._asleep = self._asleep, False
            events = _ONCE | select.EPOLLOUT if pipe.blocked else _ONCE
            pipe.known = pipe.armed = True
            if not known:
                self._epoll.register(fd, events)
            else:
                with contextlib.suppress(FileNotFoundError):  # whom we interrupt is about to
                    self._epoll.modify(fd, events)
        if wake:
            self._poke()

    def disarm(self, pipe: Pipe) -> None:
        """Leave this pipe alone: somebody reads it."""
        with self._lock:
            fd = pipe.fileno()
            pipe.armed = False
            if self._pipes.get(fd) is pipe and not self._closing:
                with contextlib.suppress(FileNotFoundError):
                    self._epoll.modify(
                        fd, select.EPOLLONESHOT
                    )  # without, a hang-up is told for ever

    def drop(self, pipe: Pipe) -> None:
        """Forget a pipe that is over, before its connection is closed."""
        with self._lock:
            for fd in list(self._pipes):
                if self._pipes.get(fd) is pipe:
                    del self._pipes[fd]
                    with contextlib.suppress(OSError, ValueError):
                        self._epoll.unregister(fd)

    def hand(self, pipe: Pipe) -> None:
        """Read this pipe now: there are answers that have come, and have not been told."""
        self._ready.append(pipe)
        self._poke()

    def time(self, timed: Expiring) -> None:
        """Keep the deadlines of something else, for as long as it says."""
        with self._lock:
            self._timed[timed] = self._timed.get(timed, 0) + 1
        self._poke()

    def wake(self) -> None:
        """Look at what is put off."""
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
        """Let another thread be the thread."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except BaseException:
            self._threads.remove(thread)
            raise

    def _is_mine(self) -> bool:
        """Say whether we are the thread."""
        return self._threads[-1] is threading.current_thread()

    def _before_block(self) -> None:
        """Let another thread go on: this one is about to block, in a callback."""
        with self._lock:
            if not self._is_mine() or self._closing:
                return
            try:
                self._begin()
            except RuntimeError as error:  # we must go on ourselves, when the callback is over
                _log.warning("a thread could not be started: %s", error)
        self._poke()  # for what is left of our round

    def _run(self) -> None:
        push_release(self._before_block)
        quiet = 0
        try:
            while self._is_mine() and not self._closing:
                try:
                    quiet = self._round(quiet)
                except Exception:  # it ends a pipe at most; the others need this thread
                    _log.exception("reading for those who do not wait failed")
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
        """Wait for something to do, and do it; return for how many rounds nothing was put off."""
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
            patience: float | None = PUT_OFF_S
        elif not self.slow:
            self.slow = True
            return quiet  # and look again: what comes after this look wakes us
        else:
            patience = TICK_S if busy or timed else None
        for fd, _ in self._epoll.poll(patience):
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
                    if self._timed.get(each) == times:  # else it was given again, just now
                        del self._timed[each]
        return quiet

    def _holds_back(self, pipe: Pipe) -> bool:
        """See to it that somebody reads a pipe; say whether to look at it again soon."""
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
