"""The step that a worker is at: told by the worker, read by its agent.

    holdfast.progress(step=120)

The worker maps a file of its own folder, which HOLDFAST_PROGRESS_FILE names, and each call writes
one number into the map: no system call, no thread, no lock. The agent reads the file when it wants
to know. Where no agent is, or the file cannot be mapped, the number goes to memory of the process.
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

from holdfast import env
from holdfast.errors import UsageError

__all__ = ["progress", "read_step"]

_BYTES = 8
_NONE = b"\xff" * _BYTES
_cells: memoryview | None = None


def progress(step: int) -> None:
    """Tell the agent that this worker is at this step: 0, 1, 2 ...

    Cheap enough for every step of a program. Does nothing where no agent is. A step that is no
    whole number, or is out of range, is a UsageError.
    """
    try:
        _cells[0] = step  # type: ignore[index]  # None until the first call
    except (TypeError, ValueError):
        _tell_first(step)


def read_step(path: Path) -> int:
    """Return the last step that a worker told in this file; -1 if it told none. Never raises."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        told = os.read(fd, _BYTES)
    except OSError:
        return -1
    finally:
        os.close(fd)
    return -1 if len(told) < _BYTES or told == _NONE else int.from_bytes(told, sys.byteorder)


def _tell_first(step: int) -> None:
    """Map the file at the first call; or say what is wrong with a step."""
    global _cells  # noqa: PLW0603  # a call of `progress` must cost next to nothing
    if not isinstance(step, int) or not 0 <= step < 1 << 64:
        raise UsageError(f"step {step!r:.80}: must be a whole number from 0 to 2**64 - 1")
    _cells = _map(env.variables().get(env.PROGRESS, ""))
    _cells[0] = step


def _map(path: str) -> memoryview:
    memory: mmap.mmap | bytearray = bytearray(_NONE)
    if path:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:  # the folder is gone: this process has outlived its job
            fd = -1
        if fd >= 0:
            try:
                os.pwrite(fd, _NONE, 0)
                memory = mmap.mmap(fd, _BYTES)
            except OSError:
                pass  # the disk is full, or cannot be mapped
            finally:
                os.close(fd)
    return memoryview(memory).cast("Q")
