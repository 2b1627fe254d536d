"""Making way: a thread that is about to block lets another one do its other work.

What a thread would keep others from while it blocks it says by `push_release`, and until when by
`pop_release`. Whatever waits for something of ours calls `before_block` first: then it gives up all
of it.

A thread whose stack is nearly full (`is_deep`) leaves to others what it would do for others: it
would fail in the midst of it.
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
    """Something that is read by one thread at a time."""

    def before_block(self) -> None:
        """Let another thread read it, if it may: ours is about to block."""
        ...


reading: dict[int, Reading] = {}
"""What each thread reads, by its id: `push_release` would cost too much in every call."""

within: dict[int, int] = {}
"""By thread, how many callbacks that wait are under way there, one within the other …"""
WITHIN_MAX = 16
"""… and within so many nobody reads any more: each answer could be another one that waits."""

ReleaseStack: TypeAlias = tuple[Callable[[], None], "ReleaseStack"] | None
"""How to give up what a thread has, and what it had before that; None for nothing."""


_DEEP_FRAMES = 500  # of the 1,000 that Python allows, unless it is told another limit


def is_deep() -> bool:
    """Say whether the stack of this thread is half full, or more."""
    try:
        sys._getframe(min(_DEEP_FRAMES, sys.getrecursionlimit() // 2))
    except ValueError:
        return False
    return True


class _Here(threading.local):
    seat: ReleaseStack = None


_here = _Here()


def push_release(give_up: Callable[[], None]) -> ReleaseStack:
    """Register a callback to be run before this thread blocks; return what `pop_release` takes."""
    before = _here.seat
    _here.seat = (give_up, before)
    return before


def pop_release(before: ReleaseStack) -> None:
    """Have no more to give up than before."""
    _here.seat = before


def leave_callbacks(here: int, before: int) -> None:
    """Be within so many callbacks again."""
    if within:
        within.pop(here, None)
        if before:
            within[here] = before


def before_block() -> None:
    """Give up what others need: this thread is about to block."""
    read = reading.get(threading.get_ident())
    if read is not None:
        read.before_block()
    seat = _here.seat
    if seat is not None:
        _here.seat = None  # what it takes on while it waits is not the same any more
        while seat is not None:
            give_up, seat = seat
            give_up()
