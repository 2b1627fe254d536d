"""What a thread releases before it blocks, so that another thread can go on with its other work.

A thread that reads a connection for others, or serves one, registers a callback (`push_release`)
that hands this work over. Every wait of this package calls `before_block` first, which runs the
callbacks.

A thread whose stack is nearly full (`is_deep`) does no work for other threads: its stack could
overflow in the middle of it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias

__all__ = [
    "WITHIN_MAX",
    "Reading",
    "ReleaseStack",
    "before_block",
    "is_deep",
    "leave_callbacks",
    "pop_release",
    "push_release",
    "reading",
    "within",
]


class Reading(Protocol):
    """An object that one thread reads at a time."""

    def before_block(self) -> None:
        """Let another thread read it, if possible: this one is about to block."""
        ...


reading: dict[int, Reading] = {}
"""What each thread reads, by its id: `push_release` would cost too much in every call."""

within: dict[int, int] = {}
"""By thread, how many nested callbacks wait there …"""
WITHIN_MAX = 16
"""… and at this depth the thread stops reading: each reply could run another one that waits."""

ReleaseStack: TypeAlias = tuple[Callable[[], object], "ReleaseStack"] | None
"""The callbacks of a thread, the newest first; None for none."""

_DEEP_FRAMES = 500  # of the 1,000 that Python allows by default


def is_deep() -> bool:
    """Return whether the stack of this thread is at least half full."""
    try:
        sys._getframe(min(_DEEP_FRAMES, sys.getrecursionlimit() // 2))
    except ValueError:
        return False
    return True


class _Here(threading.local):
    stack: ReleaseStack = None


_here = _Here()


def push_release(release: Callable[[], object]) -> ReleaseStack:
    """Register a callback to be run before this thread blocks; return what `pop_release` takes.

    The callback returns False if it could not hand over what the thread holds.
    """
    before = _here.stack
    _here.stack = (release, before)
    return before


def pop_release(before: ReleaseStack) -> None:
    """Restore the callbacks that were registered before."""
    _here.stack = before


def leave_callbacks(here: int, before: int) -> None:
    """Restore the count of nested callbacks of a thread."""
    within.pop(here, None)
    if before:
        within[here] = before


def before_block() -> bool:
    """Release what others need: this thread is about to block. False if something is still held."""
    read = reading.get(threading.get_ident())
    if read is not None:
        read.before_block()
    stack, released = _here.stack, True
    if stack is not None:
        _here.stack = None  # callbacks that are pushed during the wait form a new stack
        while stack is not None:
            release, stack = stack
            released = release() is not False and released
    return released
