"""A FIFO that only this user can use: made for the watchdog, and removed with it."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path

from holdfast.errors import Unavailable, UsageError

__all__ = ["FIFO_FLAGS", "make_fifo", "remove_fifo"]

FIFO_FLAGS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC

_log = logging.getLogger(__name__)


def make_fifo(path: Path) -> tuple[int, int]:
    """Make a FIFO that only this user can use; return both its ends, neither of which blocks.

    The FIFO that an agent of this user left when it died is replaced; anything else is refused:
    UsageError.
    """
    try:
        _clear(path)
        os.mkfifo(path, 0o600)
        reading = os.open(path, os.O_RDONLY | FIFO_FLAGS)
        try:
            return reading, os.open(path, os.O_WRONLY | FIFO_FLAGS)
        except OSError:
            os.close(reading)
            raise
    except OSError as error:
        raise Unavailable(f"timer file {path}: {error.strerror}") from error


def _clear(path: Path) -> None:
    """Remove the FIFO that an earlier agent of this user left; refuse anything else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
        raise UsageError(f"timer file {path}: exists, and is not a FIFO of this user")
    try:
        os.close(os.open(path, os.O_WRONLY | FIFO_FLAGS))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        path.unlink()
    else:  # a process reads it
        raise UsageError(f"timer file {path}: another agent uses it")


def remove_fifo(path: Path, end: int) -> None:
    """Remove the FIFO of which this is an end, unless something else is there by now."""
    try:
        if os.path.samestat(path.lstat(), os.fstat(end)):
            path.unlink()
    except OSError as error:
        _log.warning("timer file %s: cannot be removed: %s", path, error.strerror)
