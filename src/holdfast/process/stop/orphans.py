"""Orphans: processes that lost their parent, where the agent inherits them.

In a container the agent may be the first process. The kernel then makes it the parent of whatever a
worker leaves behind, and each of these stays in the table of processes until the agent reaps it.
Elsewhere an init does that, unless the agent adopts: then orphans of its workers become its own
children, by which they are found without a look at every process of the host.
"""

from __future__ import annotations

import contextlib
import os

from holdfast.process.stop.search import children

__all__ = ["adopt_orphans", "disown", "own", "reap_orphans"]

_PR_SET_CHILD_SUBREAPER = 36
_heirs = {1}  # the processes that inherit orphans; a fork of ours is none of them
_own: set[int] = set()  # the children that we started: the code that started one reaps it


def own(pid: int) -> None:
    """Note that a child is one that we started."""
    _own.add(pid)


def disown(pid: int) -> None:
    """Note that a child that we started has been reaped."""
    _own.discard(pid)


def adopt_orphans() -> bool:
    """Become the parent of orphans below this process, from now on; false if it cannot be.

    For a process that does nothing but run a job: `reap_orphans` takes the status of any child that
    is not noted here and has left our session.
    """
    with contextlib.suppress(ImportError, OSError):  # this Python cannot, or the kernel tells none
        import _ctypes

        list(children(os.getpid()))
        prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        if _ctypes.call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0:
            _heirs.add(os.getpid())
    return os.getpid() in _heirs


def reap_orphans() -> None:
    """Reap the inherited children that have ended, if this process inherits any. Never waits.

    Children of our own session are left alone: a program around us may have started them.
    """
    if os.getpid() not in _heirs:
        return
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        found = set(children(os.getpid()))
    except OSError:  # there is no child; or the kernel does not tell, or a thread has just ended
        return
    ours = os.getsid(0)
    for pid in found - _own:
        with contextlib.suppress(OSError):  # another thread was faster
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()  # a name may hold anything
            state, session = fields[0], int(fields[3])
            if state == b"Z" and session != ours:
                os.waitpid(pid, os.WNOHANG)
