"""Which process holds the lock of a file, in words for a person."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["holder_of"]

_STOPPED = ("T", "t")  # by a signal, by a debugger


def holder_of(fd: int, locks: Path = Path("/proc/locks")) -> str:
    """Name the process that holds the lock of an open file, and say so if it is stopped.

    "another process" if the system does not tell, as where it runs in another container.
    """
    inode = str(os.fstat(fd).st_ino)
    try:
        held = [line.split() for line in locks.read_text().splitlines() if "FLOCK" in line]
        # number: FLOCK ADVISORY WRITE pid device:inode start end; one that waits has an arrow.
        pids = [words[4] for words in held if words[5].rpartition(":")[2] == inode]
        name, _, state = Path(f"/proc/{int(pids[0])}/stat").read_text().rpartition(")")
    except (OSError, IndexError, ValueError):
        return "another process"
    stopped = ", stopped" if state.split()[0] in _STOPPED else ""
    return f"process {pids[0]} ({name.partition('(')[2]}{stopped})"
