"""The process that kills workers at a deadline that their agent has stopped moving.

Run by its path with the standard library alone, so that it starts quickly and stays small. The only
argument is what workers have in their environment (`HOLDFAST_GROUP=<token>.`). Lines of input:

    +GROUP    a worker has started; it leads this process group
    -GROUP    it has ended
    =MOMENT   kill all workers at this moment of the monotonic clock, instead of the one before

The end of the input is the end of the agent or of the job: then there is nothing left to do here.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import time

__all__ = ["Fencing", "main"]

READ_BYTES = 65536


class Fencing:
    """Which groups run, when they must be gone, and which have been killed."""

    def __init__(self) -> None:
        self.kill_at = math.inf
        self._groups: dict[int, None] = {}
        self._cut = b""  # the beginning of a line whose end has not come yet

    def hear(self, data: bytes) -> None:
        """Take some bytes of input."""
        *lines, self._cut = (self._cut + data).split(b"\n")
        for line in lines:
            sign, rest = line[:1], line[1:]
            if sign == b"=":
                self.kill_at = float(rest)
            elif sign == b"+":
                self._groups[int(rest)] = None
            else:
                self._groups.pop(int(rest), None)

    def wait_s(self, now: float) -> float | None:
        """Return how long to wait for input before `due` is asked; None: without a limit."""
        return max(0.0, self.kill_at - now) if self._groups and self.kill_at < math.inf else None

    def due(self, now: float) -> tuple[int, ...]:
        """Return the groups that must be killed now; each is returned once."""
        if now < self.kill_at:
            return ()
        groups, self._groups = tuple(self._groups), {}
        return groups


def main(mark: bytes, source: int = 0) -> None:
    """Read and kill until the input ends."""
    fencing = Fencing()
    while True:
        # Whatever has been written is read first: a group that has ended is not killed.
        ready, _, _ = select.select([source], [], [], fencing.wait_s(time.monotonic()))
        if ready:
            data = os.read(source, READ_BYTES)
            if not data:
                return
            fencing.hear(data)
        elif groups := fencing.due(time.monotonic()):
            _kill(groups, mark)


def _kill(groups: tuple[int, ...], mark: bytes) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for name in os.listdir("/proc"):
        if name.isdigit() and _is_marked(name, mark):
            with contextlib.suppress(OSError):
                process = os.pidfd_open(int(name))
                try:
                    if _is_marked(name, mark):  # only now is the number surely that process's
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                finally:
                    os.close(process)


def _is_marked(pid: str, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return any(item.startswith(mark) for item in file.read().split(b"\0"))
    except OSError:
        return False


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # they are for the agent, which tells us the end
    main(os.fsencode(sys.argv[1]))
