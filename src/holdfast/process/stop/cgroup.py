"""A control group of version 2 for the workers of one agent, where we may make one.

The agent holds a lock on it while it lives; one that is not locked was left by an agent that
was killed together with its reaper (see leftovers.py).

Guarantees
    CG-1  Of the control groups that are there, only those are removed that an agent of this user
          has made, which has ended, and that have no process.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
from pathlib import Path

from holdfast.clock import Clock, Deadline
from holdfast.process.stop.leftovers import candidates, taken

__all__ = ["make_cgroup", "remove_cgroup"]

_NAME = re.compile(r"holdfast-agent-[0-9a-f]{32}")
_ATTEMPTS = 3  # an agent that starts at this moment may take ours for a leftover
_LOOK_EVERY_S = 0.005

_log = logging.getLogger("holdfast.process")


def make_cgroup() -> tuple[Path, int] | None:
    """Make a control group below our own, and remove those that dead agents left there.

    Return it with a descriptor that holds its lock; None, and a line for the curious, if we may
    not make one.
    """
    try:
        own = _own_cgroup()
        _remove_leftovers(own)
        for _ in range(_ATTEMPTS):
            path = own / f"holdfast-agent-{os.urandom(16).hex()}"
            path.mkdir()
            # To move a process, its old group must be writable; before Linux 5.14 none is killed.
            if not all(os.access(f, os.W_OK) for f in (own / "cgroup.procs", path / "cgroup.kill")):
                path.rmdir()
                raise PermissionError(f"{own}: processes cannot be moved, or Linux is too old")
            if (lock := _hold(path)) is not None:
                return path, lock
    except OSError as error:
        _log.debug("no control group: %s", error)
    return None


def _hold(path: Path) -> int | None:
    """Lock a control group that was just made; None if another agent has removed it."""
    with contextlib.ExitStack() as undo, contextlib.suppress(FileNotFoundError, BlockingIOError):
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.stat()
        undo.pop_all()
        return lock
    return None


def _remove_leftovers(own: Path) -> None:
    for found in candidates(own, _NAME):
        with taken(found, os.O_RDONLY | os.O_DIRECTORY) as lock:
            if lock is not None:
                with contextlib.suppress(OSError):  # a process is in it
                    _remove_folders(found)


def _remove_folders(path: Path) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        os.rmdir(folder)


def _own_cgroup() -> Path:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    roots = [fields[1] for fields in mounts if fields[2] == "cgroup2"]
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    if not roots or not own:
        raise FileNotFoundError("there is no cgroup2")
    return Path(roots[0]) / own[0]


def remove_cgroup(path: Path, deadline: Deadline, clock: Clock) -> None:
    """Kill what is in it and remove it, with those that its processes made in it."""
    while True:
        try:
            (path / "cgroup.kill").write_text("1")
            _remove_folders(path)
            return
        except FileNotFoundError:
            return  # another process has removed it
        except OSError as error:
            if deadline.passed():
                _log.warning("control group %s stays: %s", path, error)
                return
        clock.sleep(_LOOK_EVERY_S)
