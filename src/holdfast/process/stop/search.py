"""Looks for processes: of the whole host, of a control group, or below one process.

A look at all processes of a host takes time for each of them, whatever they are. Where the kernel
keeps together what the workers started, that is read instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline

__all__ = [
    "Test",
    "all_pids",
    "can_search",
    "children",
    "descendants",
    "environment_of",
    "find",
    "kill",
    "members",
]

_log = logging.getLogger("holdfast.process")

_READS_MAX = 20  # of processes that come and go so quickly that they are never seen at rest
EXEC_WITHIN_S = 2.0
"""For how long to wait for a process that becomes another program; on a busy host it is slow."""
_EXEC_LOOK_EVERY_S = 0.001
_ENVIRON_BYTES = 1 << 16  # more than most have
_ENVIRON_BYTES_MAX = 8 << 20  # the kernel allows 6 MiB
_PF_KTHREAD = 0x200000  # among the kernel's flags of a process: a thread of the kernel's own

Test: TypeAlias = Callable[[list[bytes]], bool]
"""Says of the environment of a process whether it is meant."""


def can_search() -> bool:
    """Say whether processes can be found and held here."""
    return hasattr(os, "pidfd_open") and Path("/proc/self/environ").exists()


def members(cgroup: Path) -> list[int]:
    """Return the processes of a control group and of those below it."""
    found: list[int] = []
    for folder, _, _ in os.walk(cgroup):
        with contextlib.suppress(OSError):  # removed meanwhile, or one whose members are threads
            found += map(int, Path(folder, "cgroup.procs").read_bytes().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return what a process has started, and what that has.

    The children of one that ends become those of another: then all is read again.
    """
    found: list[int] = []
    for _ in range(_READS_MAX):
        found = list(children(pid))
        whole = True
        for one in found:  # which grows meanwhile
            try:
                found += children(one)
            except OSError:
                whole = False
        if whole:
            break
    return found


def children(pid: int) -> Iterator[int]:
    """Return the children of all threads of a process. OSError if it is gone, or not told."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
            yield from map(int, file.read().split())


@contextlib.contextmanager
def find(is_meant: Test, pids: Iterable[int]) -> Iterator[dict[int, int]]:
    """Give those of these processes, by pid with a descriptor, whose environment is meant."""
    found: dict[int, int] = {}
    try:
        for pid in pids if can_search() else ():
            if is_meant(environment_of(pid)):
                with contextlib.suppress(OSError):
                    found[pid] = os.pidfd_open(pid)
        # Looked at again: only now are the numbers surely theirs.
        yield {pid: fd for pid, fd in found.items() if is_meant(environment_of(pid))}
    finally:
        for fd in found.values():
            os.close(fd)


def all_pids() -> list[int]:
    """Return every process of the host."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:  # no descriptor is left; what is going on must not fail for that
        _log.warning("what workers left behind cannot be looked for: %s", error.strerror)
        return []


def environment_of(pid: int, clock: Clock = SYSTEM_CLOCK) -> list[bytes]:
    """Return what the process was started with; nothing if it has ended, or is not ours to read.

    A process that becomes another program has none for a moment: waits for the end of that.
    """
    deadline = Deadline.after(EXEC_WITHIN_S, clock)
    try:
        while not deadline.passed():
            environment = _read_environment(pid)
            if environment or _has_none(Path(f"/proc/{pid}/stat").read_bytes()):
                return environment.split(b"\0")
            clock.sleep(_EXEC_LOOK_EVERY_S)
    except OSError:
        pass
    return []


def _read_environment(pid: int) -> bytes:
    """Read it by one call: between two, the process may become another program."""
    fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    try:
        environment = os.pread(fd, _ENVIRON_BYTES, 0)
        if len(environment) < _ENVIRON_BYTES:
            return environment
        return os.pread(fd, _ENVIRON_BYTES_MAX, 0)
    finally:
        os.close(fd)


def _has_none(stat: bytes) -> bool:
    """Say whether a process has no environment, and not only while it becomes another program.

    Of a new program the kernel sets the start of the environment and its end to the same first,
    then the true end, then the start of the code.
    """
    fields = stat.rpartition(b")")[2].split()  # the name before it may hold anything
    state, flags, code = fields[0], int(fields[6]), int(fields[23])
    start, end = int(fields[47]), int(fields[48])
    settled = code != 0 and start == end != 0
    return state in (b"Z", b"X") or bool(flags & _PF_KTHREAD) or settled


def kill(fds: Iterable[int]) -> None:
    """Kill what these descriptors stand for."""
    for fd in fds:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
