"""Runs one command for as long as its parent lives. A script of its own, run by path.

    python -I -S guard.py PARENT_PID COMMAND [ARGUMENT ...]

The parent holds the other end of the guard's standard input. When that is closed, on purpose or
because the parent died by any means, the command is killed at once. A process that the parent
forked may hold a copy of the pipe, so the guard also looks once a second whether it still is
the child of PARENT_PID. When the guard itself is killed, the kernel kills the command: its death
signal is tied to the thread that forked, and the guard forks from its only lasting one.

Nothing here may import holdfast: the guard has to start within milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading

LOOK_EVERY_S = 1.0
_PR_SET_PDEATHSIG = 1


def guard(parent: int, command: list[str]) -> int:
    """Run the command and return its exit status; 128 + the signal's number if one ended it."""
    child = _start(command)
    threading.Thread(target=_kill_when_orphaned, args=(parent, child), daemon=True).start()
    # WNOWAIT leaves the dead child's number taken, so that the thread cannot hit another process.
    result = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if result is None or result.si_code == os.CLD_EXITED:
        return 0 if result is None else result.si_status
    return 128 + result.si_status


def _start(command: list[str]) -> int:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    guard_pid = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guard_pid:  # else the guard died before the signal was asked for
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execv(command[0], command)  # noqa: S606  # no shell is what we want
    finally:
        os._exit(127)


def _kill_when_orphaned(parent: int, child: int) -> None:
    while os.getppid() == parent:
        if select.select([0], [], [], LOOK_EVERY_S)[0] and not os.read(0, 1024):
            break
    os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    os._exit(guard(int(sys.argv[1]), sys.argv[2:]))
