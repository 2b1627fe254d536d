"""Orphans: processes that lost their parent, where the agent inherits them since it is process 1.

In a container the agent may be the first process. The kernel then makes it the parent of whatever a
worker leaves behind, and each of these stays in the table of processes until the agent reaps it.
Elsewhere an init does that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["disown", "own", "reap_orphans"]

_INIT = 1
_own: set[int] = set()  # the children that we started: the code that started one reaps it


def own(pid: int) -> None:
    """Note that a child is one that we started."""
    _own.add(pid)


def disown(pid: int) -> None:
    """Note that a child that we started has been reaped."""
    _own.discard(pid)


def reap_orphans() -> None:
    """Reap the inherited children that have ended, if this is process 1. Never waits.

    Children of our own session are left alone: a program around us may have started them.
    """
    if os.getpid() != _INIT:
        return
    ours = os.getsid(0)
    for pid in set(_children()) - _own:
        with contextlib.suppress(OSError):  # another thread was faster
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()  # a name may hold anything
            state, session = fields[0], int(fields[3])
            if state == b"Z" and session != ours:
                os.waitpid(pid, os.WNOHANG)


def _children() -> Iterator[int]:
    """Return the children of all our threads; none where the kernel does not tell."""
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())
