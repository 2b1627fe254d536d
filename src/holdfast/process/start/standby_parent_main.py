"""What the parent of standbys does: it has imported once, and forks a standby for each request.

Loaded by standby_main.py. If the imports left more than a fork may share (forkable.py), this
process starts itself again without them, and an interpreter for each request, which imports.

A request is one byte, REQUEST, with two descriptors: the socket by which the standby hears its
order, and the writing end of a pipe. As with the forkserver (zygote.py), the standby writes its
number into the pipe as soon as it is a process group, this process writes the exit code at its end,
and takes the dead one away only when the agent has closed the pipe. HURRY ends the delay before the
imports. Standbys and the workers that they become end with this process.

Nothing here may import holdfast: see child.py.
"""

from __future__ import annotations

import os
import select
import socket
import sys

TYPE_CHECKING = False  # the real one would cost the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    Request = tuple[int, int]
    """The socket of a standby's order, and the pipe that tells of the standby."""

__all__ = ["HURRY", "REQUEST", "Parent"]

REQUEST, HURRY = b"f", b"h"

_NUMBER = 11  # characters in which a process's number is told


class Parent:
    """The requests of the agent, and the standbys that live, or are dead and not yet released.

    `order` and `environment` are those of this process; `load` is child.py's. To be made before
    the imports.
    """

    def __init__(
        self,
        order: Mapping[str, str],
        requests: socket.socket,
        environment: Mapping[str, str],
        load: Callable[[str], dict[str, Any]],
    ) -> None:
        self._order = order
        self._requests = requests
        self._environment = environment
        self._write_order = load("orders")["write_order"]
        forkable = load("forkable")
        self._why_apart, self._seed_anew = forkable["why_apart"], forkable["seed_anew"]
        self._open_before = forkable["descriptors"]()
        self._drawn_before = forkable["random_state"]()
        self._asked: list[Request] = []  # not yet answered
        for pair in filter(None, order.get("asked", "").split(",")):
            orders, _, pipe = pair.partition(":")
            self._asked.append((int(orders), int(pipe)))
        self._pipes: dict[int, int] = {}  # by number of the process
        self._ends: dict[int, int] = {}  # descriptors of processes that run, by number
        self._poll = select.poll()

    def delay(self, seconds: float) -> None:
        """Wait before the imports, until the agent is in a hurry; after the last request."""
        while seconds and _readable(self._requests, seconds):
            if self._receive() == HURRY:
                return

    def serve(self, tie_to: Callable[[int], None]) -> socket.socket:
        """Answer requests; return in each standby, with the socket of its order."""
        alone = self._order["forks"] == "yes"
        known = self._open_before | self._descriptors()
        if alone and (why := self._why_apart(known, self._drawn_before)):
            self._start_again(why)
        self._poll.register(self._requests, select.POLLIN)
        while True:
            while self._asked:
                request = self._asked.pop(0)
                if self._fork(*request, tie_to):
                    if not alone:
                        self._become_interpreter(request[0])
                    return socket.socket(fileno=request[0])
            for descriptor, _ in self._poll.poll():
                if descriptor == self._requests.fileno():
                    self._receive()
                else:
                    self._look(descriptor)

    def _descriptors(self) -> set[int]:
        return {self._requests.fileno(), *(one for request in self._asked for one in request)}

    def _receive(self) -> bytes:
        data, sent, _, _ = socket.recv_fds(self._requests, 1, 2, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)  # the agent needs no more, and all standbys end with this process
        if data == REQUEST:
            self._asked.append((sent[0], sent[1]))
        return data

    def _fork(self, orders: int, pipe: int, tie_to: Callable[[int], None]) -> bool:
        """Fork a standby; true in the standby. If there is no room, the agent sees the pipe end."""
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            sys.stderr.write(f"holdfast: cannot fork a standby: {error.strerror}\n")
            os.close(orders)
            os.close(pipe)
            return False
        if pid:
            os.close(orders)
            self._pipes[pid], self._ends[pid] = pipe, os.pidfd_open(pid)
            self._poll.register(pipe, 0)  # to hear that the agent has closed it
            self._poll.register(self._ends[pid], select.POLLIN)
            return False
        try:
            os.setsid()
            tie_to(parent)
            self._seed_anew()
            self._requests.close()
            for request in self._asked:
                for descriptor in request:
                    os.close(descriptor)
            for descriptor in (*self._pipes.values(), *self._ends.values()):
                os.close(descriptor)
            os.write(pipe, str(os.getpid()).zfill(_NUMBER).encode())
            os.close(pipe)
        except BaseException:  # the agent sees the pipe end, and starts the worker cold
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        return True

    def _look(self, descriptor: int) -> None:
        """Do what follows from the end of a standby, or from its release by the agent."""
        for pid, end in tuple(self._ends.items()):
            if end == descriptor:
                self._poll.unregister(end)
                os.close(self._ends.pop(pid))
                self._tell_end(pid)
                return
        for pid, pipe in tuple(self._pipes.items()):
            if pipe == descriptor:
                self._poll.unregister(pipe)
                if pid not in self._ends:  # else its end will not be reported
                    self._reap(pid)
                return

    def _tell_end(self, pid: int) -> None:
        how = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert how is not None  # noqa: S101  # it has ended
        code = how.si_status if how.si_code == os.CLD_EXITED else -how.si_status
        try:
            os.write(self._pipes[pid], str(code).encode())
        except BrokenPipeError:  # the agent has released it
            try:
                self._poll.unregister(self._pipes[pid])
            except KeyError:
                pass  # we have heard of that
            self._reap(pid)

    def _reap(self, pid: int) -> None:
        os.close(self._pipes.pop(pid))
        os.waitpid(pid, 0)

    # Where a fork would not do.

    def _start_again(self, why: str) -> NoReturn:
        """Become a process without the imports, which starts interpreters that import."""
        asked = ",".join(f"{orders}:{pipe}" for orders, pipe in self._asked)
        order = {**self._order, "forks": "no", "delay": "0", "asked": asked, "why": why}
        for descriptor in self._descriptors():
            os.set_inheritable(descriptor, True)
        self._execute(order)

    def _become_interpreter(self, orders: int) -> NoReturn:
        """Become a standby that imports by itself, with files of its own for what that prints."""
        for stream in (1, 2):
            os.dup2(os.memfd_create("holdfast"), stream)
        os.set_inheritable(orders, True)
        leave_out = ("forks", "asked", "why", "cgroup")  # it is in there
        order = {name: value for name, value in self._order.items() if name not in leave_out}
        order |= {"parent": str(os.getppid()), "orders": str(orders), "delay": "0"}
        self._execute(order)

    def _execute(self, order: Mapping[str, str]) -> NoReturn:
        environment = {**self._environment, "HOLDFAST_WORKER": self._write_order(order)}
        os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606


def _readable(sock: socket.socket, seconds: float) -> bool:
    comes = select.poll()  # unlike `select`, for descriptors of any number
    comes.register(sock, select.POLLIN)
    return bool(comes.poll(1000 * seconds))
