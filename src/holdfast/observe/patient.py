"""A stream that waits for its reader, but not for ever.

The reader of a job's output may stop: a pipe whose reader hangs, a terminal that is held (Ctrl-S).
A job must not stop with it, nor stop handling signals.

Guarantees
    PS-1  However much is written, and however often, a reader that does not read costs `WAIT_S`
          once; from then on what does not fit is left out, until the reader reads again.
    PS-2  While it is read, nothing is left out.
"""

from __future__ import annotations

import io
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any, TextIO

__all__ = ["WAIT_S", "PatientFile", "patient_stderr"]

WAIT_S = 2.0
_PIECE_BYTES = 4096  # what a pipe that says that it can be written to takes at once (PIPE_BUF)


class PatientFile(io.RawIOBase):
    """A descriptor to write to. Its owner is elsewhere: closing this leaves it open."""

    def __init__(self, fd: int, wait_s: float = WAIT_S) -> None:
        self._fd = fd
        self._wait_ms = 1000 * wait_s
        self._stuck = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, data: Any, /) -> int:
        """Write what the reader takes in time; the rest is left out, and counts as written."""
        whole = memoryview(data).cast("B")
        left = whole
        while left and self._can_be_written():
            left = left[os.write(self._fd, left[:_PIECE_BYTES]) :]
        return len(whole)

    def _can_be_written(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        self._stuck = not poll.poll(0 if self._stuck else self._wait_ms)
        return not self._stuck


@contextmanager
def patient_stderr(stream: TextIO) -> Iterator[None]:
    """Let everything that this process tells on its standard error go by a patient stream."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError, AttributeError):  # none, or not the system's
        yield
        return
    patient = io.TextIOWrapper(
        io.BufferedWriter(PatientFile(fd)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )
    try:
        with redirect_stderr(patient):
            yield
    finally:
        patient.flush()
