"""A part of a log file, in lines: its end at first, then what has been written since."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from holdfast.records import dataclass

__all__ = ["WINDOW_BYTES", "LogWindow", "read_window"]

WINDOW_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class LogWindow:
    """Lines, and where to read on; `skipped` bytes lie between where it was asked for and these."""

    lines: tuple[str, ...]
    offset: int
    skipped: int = 0


def read_window(path: Path, offset: int) -> LogWindow | None:
    """Read whole lines from an offset on; None if there is no regular file.

    If there is more than WINDOW_BYTES, the end of it. A line without its end waits for it, unless
    it is longer than that.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            return None
        size = found.st_size
        wanted = offset if offset <= size else 0  # written anew
        begin = max(wanted, size - WINDOW_BYTES)
        file.seek(begin)
        data = file.read(WINDOW_BYTES) or b""
    if begin > wanted and b"\n" in data:  # begin with a whole line
        cut = data.index(b"\n") + 1
        begin, data = begin + cut, data[cut:]
    end = data.rfind(b"\n") + 1
    if not end and len(data) == WINDOW_BYTES:
        end = len(data)
    lines = data[:end].decode("utf-8", "replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    return LogWindow(tuple(lines), begin + end, begin - wanted)
