"""What an agent leaves if it is killed together with its reaper: a later agent removes it.

That is the agent's private folder, which may hold the job's secret, and its empty control group
(cgroup.py). An agent holds a lock on both while it lives; the kernel releases the lock when the
agent ends, in any way. A later agent of the same user removes what it can lock.

In a folder the lock is on a file, the marker, that names the running kernel: a folder for temporary
files may be shared by machines that do not see each other's locks. A marker gets its name when it
is locked; a folder without a marker is never touched.

Guarantees
    LO-1  Only folders of this user are removed that hold the marker of an agent which ran on this
          kernel and has ended. No link is followed.
    LO-2  One search looks at ENTRIES_MAX names at most, and opens CANDIDATES_MAX of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

__all__ = [
    "CANDIDATES_MAX",
    "ENTRIES_MAX",
    "MARKER",
    "candidates",
    "hold_folder",
    "remove_folder",
    "remove_leftover_folders",
    "taken",
]

ENTRIES_MAX = 10_000
CANDIDATES_MAX = 64
MARKER = "agent.lock"

_FOLDER = re.compile(r"holdfast_.*")
_PRIVATE = ("", "private")  # where an agent's private folder is: see logs.py
_KERNEL = "/proc/sys/kernel/random/boot_id"
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_log = logging.getLogger("holdfast.process")


def hold_folder(folder: Path) -> int | None:
    """Mark a private folder as this agent's; return a descriptor to keep open.

    None if it cannot be marked, as on a full disk: then no later agent removes it.
    """
    draft = folder / f"{MARKER}.new"
    try:
        marker = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(marker, _kernel())
            os.rename(draft, folder / MARKER)
        except OSError:
            os.close(marker)
            raise
    except OSError as error:
        _log.debug("folder %s is not marked: %s", folder, error.strerror)
        return None
    return marker


def remove_leftover_folders(parent: Path) -> None:
    """Remove the private folders below a folder for temporary files whose agents have ended."""
    for found in candidates(parent, _FOLDER):
        for private in (found / name for name in _PRIVATE):
            with taken(private / MARKER, os.O_RDONLY) as marker:
                if marker is not None and os.read(marker, 100) == _kernel():
                    remove_folder(private)


def remove_folder(folder: Path) -> None:
    """Remove a folder and what is in it, with one descriptor: there may be no more."""
    folders = [str(folder)]
    for path in folders:  # which grows meanwhile
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
    for path in reversed(folders):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def candidates(parent: Path, name: re.Pattern[str]) -> Iterator[Path]:
    """Return the folders of this user with such names, to which no other user can write."""
    found = []
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in islice(entries, ENTRIES_MAX):
            if name.fullmatch(entry.name) and _is_ours(entry.stat(follow_symlinks=False)):
                found.append(Path(entry.path))
    return islice(iter(found), CANDIDATES_MAX)


def _is_ours(status: os.stat_result) -> bool:
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not others_write


@contextlib.contextmanager
def taken(path: Path, flags: int) -> Iterator[int | None]:
    """Give a descriptor of what is locked by no other, with the lock held; else None."""
    try:
        held = os.open(path, flags | _FLAGS)
    except OSError:
        yield None
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield None
    else:
        yield held
    finally:
        os.close(held)


def _kernel() -> bytes:
    return Path(_KERNEL).read_bytes()
