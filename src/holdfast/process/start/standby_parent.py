"""The agent's side of the parent of standbys: one process that imports once and forks them.

What it does is in standby_parent_main.py. Standbys are asked for ahead of time, and nothing waits
for them until one is needed. They are children of that process, and so are the workers that they
become: these end if it does.

Guarantees
    SP-1  A standby that was asked for is returned, or none is left: its process ends when its
          socket is closed, and when the parent ends.
    SP-2  Nothing waits for a parent that has ended, or is stopped: the worker starts cold. To ask
          for standbys never waits.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from holdfast.errors import Unavailable
from holdfast.process.start.standby_parent_main import HURRY, REQUEST
from holdfast.process.start.zygote import Forked, StartGivenUp
from holdfast.process.stop.handle import WorkerProcess, end, is_stopped

__all__ = ["AskedStandby", "StandbyParent"]

_log = logging.getLogger("holdfast.process")


class StandbyParent:
    """The process, by the socket on which it gets its requests. Used by one thread."""

    def __init__(self, process: WorkerProcess, requests: socket.socket) -> None:
        self._process = process
        self._requests = requests
        requests.setblocking(False)  # one that reads nothing is not waited for

    def alive(self) -> bool:
        """Say whether it has not ended."""
        return self._process.reap() is None

    def ask(self) -> AskedStandby:
        """Ask for one more standby, without waiting.

        OSError if the process is gone, reads nothing, or there is no room.
        """
        orders, their_orders = socket.socketpair()
        try:
            pipe, their_pipe = os.pipe()
            try:
                descriptors = [their_orders.fileno(), their_pipe]
                socket.send_fds(self._requests, [REQUEST], descriptors)
            except BaseException:
                os.close(pipe)
                raise
            finally:
                os.close(their_pipe)
        except BaseException:
            orders.close()
            raise
        finally:
            their_orders.close()
        return AskedStandby(self, orders, pipe)

    def hurry(self) -> None:
        """Let it import now, if it still lets time pass."""
        with suppress(OSError):  # it has ended, which is seen elsewhere
            self._requests.send(HURRY)

    def stopped(self) -> bool:
        """Say whether it can do nothing at the moment."""
        return self.alive() and is_stopped(self._process.pid)

    def close(self) -> None:
        """End it, and whatever it has forked with it."""
        self._requests.close()
        end(self._process)


class AskedStandby:
    """A standby that was asked for, and may not be there yet."""

    def __init__(self, parent: StandbyParent, orders: socket.socket, pipe: int) -> None:
        self._parent = parent
        self._orders = orders
        self._pipe = pipe

    def wait(self, is_needless: Callable[[], bool]) -> tuple[WorkerProcess, socket.socket] | None:
        """Return its process, and the socket for its order; None if there will be none.

        Waits while the parent imports. StartGivenUp as soon as it `is_needless`.
        """
        self._parent.hurry()
        pipe, self._pipe = self._pipe, -1
        try:
            return Forked(pipe, lambda: is_needless() or self._parent.stopped()), self._orders
        except StartGivenUp:
            self._orders.close()
            if is_needless():
                raise
            _log.warning("the parent of the standbys is stopped: a worker starts cold")
        except Unavailable as error:
            self._orders.close()
            _log.debug("no standby: %s", error)
        return None

    def close(self) -> None:
        """Give it up: its process ends, if there is one."""
        self._orders.close()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
