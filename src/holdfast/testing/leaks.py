"""What a piece of code left behind: threads, open files, processes, temporary files.

    before = take_snapshot(directory)
    ...
    assert not find_leaks(before)

A snapshot costs well under a millisecond, so it can be taken around every test. Descriptors and
processes are read from /proc; where there is none, only threads and files are compared.

A process counts as left behind if it is a descendant of this one, or, when its parent has died,
if it inherited the environment variable `MARK` with this process's value (see `mark()`).
Processes that an older process started are that one's business, and are not reported.

The driver of a GPU opens its files at the first use and keeps them until the process ends. They are
not reported, nor are the pipes, sockets and events that appear together with the first of them.
"""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline

__all__ = [
    "MARK",
    "Kind",
    "Leak",
    "Snapshot",
    "describe_leaks",
    "find_leaks",
    "mark",
    "take_snapshot",
]

MARK = "PYTEST_HOLDFAST_LEAK_MARK"
"""The environment variable by which orphans are recognised."""

GRACE_S = 20.0  # only what has left something waits for it
_PROC = Path("/proc")
_STANDARD_STREAMS = (0, 1, 2)
_TARGET_MAX = 200
_DRIVER = "/dev/nvidia"
_ANONYMOUS = ("anon_inode:", "pipe:", "socket:")


class Kind(StrEnum):
    """What can be left behind."""

    THREAD = "thread"
    FD = "open file"
    PROCESS = "process"
    FILE = "temporary file"


@dataclass(frozen=True, slots=True)
class Leak:
    """One thing that is there now and was not there before."""

    kind: Kind
    what: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What existed at one moment."""

    threads: frozenset[threading.Thread]
    fds: frozenset[tuple[int, str]]
    pids: frozenset[int]
    directory: Path | None
    files: frozenset[str]


def mark() -> str:
    """Return the value of `MARK` that names this process; put it in the environment yourself."""
    return f"{os.getpid()}"


def take_snapshot(directory: Path | None = None) -> Snapshot:
    """Note what exists now; `directory` is where temporary files are looked for."""
    return Snapshot(
        threads=frozenset(threading.enumerate()),
        fds=frozenset(_open_fds().items()),
        pids=frozenset(_all_pids()),
        directory=directory,
        files=frozenset(_files_in(directory)),
    )


def find_leaks(
    before: Snapshot, *, grace_s: float = GRACE_S, clock: Clock = SYSTEM_CLOCK
) -> list[Leak]:
    """Return what is there now and was not `before`; blocks for at most `grace_s`.

    The grace is for what is just ending (a thread that was told to stop, a child that is being
    reaped); it is only taken when something is found, after a garbage collection.
    """
    leaks = _compare(before)
    if not leaks:
        return []
    gc.collect()
    deadline = Deadline.after(grace_s, clock)
    pause = 0.001
    while (leaks := _compare(before)) and not deadline.passed():
        clock.sleep(pause)
        pause = min(2 * pause, 0.05)
    return leaks


def describe_leaks(leaks: list[Leak], whose: str) -> str:
    """Say in a few lines what was left behind, and by which test."""
    lines = [f"{whose} left {len(leaks)} thing{'s' * (len(leaks) != 1)} behind:"]
    lines.extend(f"  {leak.kind}: {leak.what}" for leak in leaks)
    return "\n".join(lines)


def _compare(before: Snapshot) -> list[Leak]:
    leaks = [
        Leak(Kind.THREAD, _thread_text(thread))
        for thread in threading.enumerate()
        if thread not in before.threads
    ]
    leaks += [
        Leak(Kind.FD, f"{fd} -> {target[:_TARGET_MAX]}") for fd, target in _new_fds(before.fds)
    ]
    leaks += [Leak(Kind.PROCESS, text) for text in _new_processes(before.pids)]
    leaks += [
        Leak(Kind.FILE, name)
        for name in sorted(_files_in(before.directory))
        if name not in before.files
    ]
    return leaks


def _thread_text(thread: threading.Thread) -> str:
    return f"{thread.name!r}{' (daemon)' * thread.daemon}"


def _new_fds(old: frozenset[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the descriptors that are new, those of a GPU's driver left out."""
    new = sorted(set(_open_fds().items()) - old)
    kept = [(fd, target) for fd, target in new if not target.startswith(_DRIVER)]
    was_used = any(target.startswith(_DRIVER) for _, target in old)
    if len(kept) == len(new) or was_used:
        return kept
    return [(fd, target) for fd, target in kept if not target.startswith(_ANONYMOUS)]


def _open_fds() -> dict[int, str]:
    """Return the open descriptors and what they point to, the standard streams left out.

    The standard streams are left out because test runners turn them round to capture output.
    """
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return {}
    found = {}
    for fd in map(int, names):
        if fd not in _STANDARD_STREAMS:
            try:
                found[fd] = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                pass  # the one that listed the directory, or another thread's
    return found


def _all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    text: str


def _new_processes(old: frozenset[int]) -> list[str]:
    new = {pid: info for pid in _all_pids() if pid not in old and (info := _process(pid))}
    return [f"{pid} {info.text}" for pid, info in new.items() if _is_ours(pid, new, old)]


def _is_ours(pid: int, new: dict[int, _Process], old: frozenset[int]) -> bool:
    """Say whether the process came from us: by its line of parents, or by its mark."""
    me = os.getpid()
    ancestor = pid
    while ancestor in new:
        ancestor = new[ancestor].parent
    if ancestor == me:
        return True
    # Its parent is an older process. If that one is ours too, it answers for its children; else
    # the real parent has died, and only the mark can tell.
    return not _descends_from(ancestor, me) and _environ_mark(pid) == mark()


def _descends_from(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        info = _process(pid)
        if info is None:
            return False
        pid = info.parent
    return False


def _process(pid: int) -> _Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    # "pid (name) state ppid ...": the name may hold spaces and parentheses.
    name, _, rest = stat.partition("(")[2].rpartition(")")
    state, parent = rest.split()[:2]
    text = command.replace(b"\0", b" ").decode(errors="replace").strip() or f"({name})"
    ended = " (ended, but not reaped)" if state == "Z" else ""
    return _Process(int(parent), f"{text[:_TARGET_MAX]}{ended}")


def _environ_mark(pid: int) -> str | None:
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{MARK}=".encode()
    for item in data.split(b"\0"):
        if item.startswith(prefix):
            return item[len(prefix) :].decode(errors="replace")
    return None


def _files_in(directory: Path | None) -> list[str]:
    if directory is None:
        return []
    try:
        return os.listdir(directory)
    except OSError:
        return []
