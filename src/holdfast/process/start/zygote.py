"""The process that forks workers, for the start method forkserver.

It has imported what the workers need, and nothing of the agent is in it: no thread, no open
connection. The agent sends it orders over a socket, with the descriptors of the worker and the
writing end of a pipe. The worker writes its number into the pipe as soon as it is a process group;
the zygote writes the exit code when the worker has ended, and takes the dead worker away only
when the agent has closed the pipe: until then its number cannot be reused. If the
zygote is stopped, the agent asks the system how a worker ended, and starts the next attempt with
another zygote.

When the agent closes the socket, or dies, the zygote ends, and its workers with it.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from holdfast.clock import Deadline
from holdfast.errors import Unavailable
from holdfast.process.spec import Exit
from holdfast.process.start import child
from holdfast.process.start.forked import run_forked
from holdfast.process.start.orders import send_order
from holdfast.process.stop.handle import WorkerProcess, end, exit_of, is_stopped, readable

__all__ = ["Forked", "StartGivenUp", "Zygote", "serve"]

# The zygote answers when it has imported what its workers need, which may be much.
START_LIMIT_S = 300.0
_ASK_EVERY_S = 0.5
_NUMBER = 11  # characters in which a process's number is told
_KILLED = Exit(-signal.SIGKILL)


class StartGivenUp(Exception):
    """A worker is not waited for any more: another one has failed meanwhile."""


class Forked:
    """A worker that the zygote forked, by the pipe that tells of it."""

    def __init__(self, pipe: int, is_needless: Callable[[], bool] = lambda: False) -> None:
        """Take over the pipe; Unavailable if no worker comes.

        StartGivenUp as soon as `is_needless`, which is asked now and then while nothing comes.
        """
        self._pipe = pipe
        self._exit: Exit | None = None
        deadline = Deadline.after(START_LIMIT_S)
        try:
            while not readable(pipe, deadline.sooner(_ASK_EVERY_S).remaining() or 0.0):
                if is_needless():
                    raise StartGivenUp
                if deadline.passed():
                    raise Unavailable(
                        f"the forkserver started no worker within {START_LIMIT_S:.0f} s"
                    )
            number = os.read(pipe, _NUMBER)
            if len(number) < _NUMBER:  # its end, if anything: it never came to tell its number
                raise Unavailable("the forkserver could not start the worker: see its stderr")
        except BaseException:
            self.close()
            raise
        self.pid = int(number)

    def fileno(self) -> int:
        return self._pipe

    def reap(self) -> Exit | None:
        if self._exit is None:
            seen = exit_of(self.pid)
            if readable(self._pipe, 0):  # else the zygote lives, and the number is the worker's
                code = os.read(self._pipe, _NUMBER)
                seen = Exit(int(code)) if code else _KILLED  # the zygote died, so they all did
            self._exit = seen
        return self._exit

    def close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


class Zygote:
    """The agent's side. Used by one thread, but for `interrupt`.

    `launch` starts the zygote, which shall call `serve` with the socket that it is given.
    """

    def __init__(self, launch: Callable[[socket.socket], WorkerProcess]) -> None:
        self._orders, theirs = socket.socketpair()
        self._lock = threading.Lock()  # while this is held, it is not reaped and keeps its number
        with theirs:
            try:
                self._process = launch(theirs)
            except BaseException:
                self._orders.close()
                raise

    def alive(self) -> bool:
        """Say whether it has not ended."""
        with self._lock:
            return self._process.reap() is None

    def stopped(self) -> bool:
        """Say whether it can start no workers, since it is stopped."""
        with self._lock:
            return self._process.reap() is None and is_stopped(self._process.pid)

    def interrupt(self) -> None:
        """Kill it, so that a `start` which waits for it fails at once. From any thread."""
        with self._lock:
            if self._process.reap() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def start(
        self,
        order: Mapping[str, str],
        environment: Mapping[str, str],
        streams: tuple[int, int],
        payload: Sequence[int],
        is_needless: Callable[[], bool] = lambda: False,
    ) -> Forked:
        """Have a worker forked; Unavailable if that fails, StartGivenUp if it is needless."""
        reading, writing = os.pipe()
        try:
            send_order(self._orders, order, environment, [*streams, writing, *payload])
        except OSError as error:
            os.close(reading)
            raise Unavailable(f"the forkserver is gone: {error.strerror}") from error
        finally:
            os.close(writing)
        return Forked(reading, is_needless)

    def close(self) -> None:
        """End the zygote, and whatever it has forked with it."""
        self._orders.close()
        with self._lock:
            end(self._process)


# The zygote's own side.


def serve(orders: socket.socket, modules: tuple[str, ...]) -> None:
    """Fork a worker for each order, until no more can come."""
    for module in modules:
        with suppress(Exception):  # the worker that needs it will say what is wrong
            importlib.import_module(module)
    with orders, _Nursery(orders) as nursery:
        nursery.run()


class _Nursery:
    """The workers that live, or are dead and not yet released by the agent; by number."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._woken, self._waker = socket.socketpair()
        self._pipes: dict[int, int] = {}
        self._ended: set[int] = set()
        self._poll = select.poll()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for descriptor in (self._woken, self._waker):
            descriptor.close()

    def run(self) -> None:
        for side in (self._woken, self._waker):
            side.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._poll.register(self._orders, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            if self._woken.fileno() in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._tell_ends()
            for pid, pipe in tuple(self._pipes.items()):
                if pipe in ready:
                    self._release(pid)
            if self._orders.fileno() in ready and not self._fork():
                return

    def _fork(self) -> bool:
        received = child.receive_order(self._orders)
        if received is None:
            return False
        order, environment, (stdout, stderr, pipe, payload, *inherited) = received
        order["parent"] = str(os.getpid())
        order["payload"] = str(payload)
        order["inherited"] = ",".join(map(str, inherited))

        def begun() -> None:
            for other in (self._orders, self._woken, self._waker):
                other.close()
            for unlike in self._pipes.values():
                os.close(unlike)
            os.write(pipe, str(os.getpid()).zfill(_NUMBER).encode())
            os.close(pipe)

        try:
            pid = os.fork()
        except OSError as error:  # the agent sees its pipe closed
            sys.stderr.write(f"holdfast: the forkserver cannot fork: {error.strerror}\n")
            for descriptor in (stdout, stderr, pipe, payload, *inherited):
                os.close(descriptor)
            return True
        if pid == 0:
            work = partial(child.run_payload, order)
            run_forked(order, environment, (stdout, stderr), begun, work)
        for descriptor in (stdout, stderr, payload, *inherited):
            os.close(descriptor)
        self._pipes[pid] = pipe
        self._poll.register(pipe, 0)  # to hear that the agent has closed it
        return True

    def _tell_ends(self) -> None:
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        for pid in self._pipes.keys() - self._ended:
            if (how_ended := os.waitid(os.P_PID, pid, how)) is not None:
                code = (
                    how_ended.si_status
                    if how_ended.si_code == os.CLD_EXITED
                    else -how_ended.si_status
                )
                try:
                    os.write(self._pipes[pid], str(code).encode())
                    self._ended.add(pid)
                except BrokenPipeError:  # the agent has released it
                    with suppress(KeyError):  # we may not have heard of that yet
                        self._poll.unregister(self._pipes[pid])
                    self._reap(pid)

    def _release(self, pid: int) -> None:
        """Do what is left when the agent has closed a pipe."""
        self._poll.unregister(self._pipes[pid])
        if pid in self._ended:  # else its end will not be reported
            self._ended.discard(pid)
            self._reap(pid)

    def _reap(self, pid: int) -> None:
        os.close(self._pipes.pop(pid))
        os.waitpid(pid, 0)
