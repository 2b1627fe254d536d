"""Making way: a thread that is about to block lets another one do its other work."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["make_way", "sit"]


class _Here(threading.local):
    give_up: Callable[[], None] | None = None


_here = _Here()


def sit(give_up: Callable[[], None] | None) -> None:
    """Say what this thread must give up before it blocks; None for nothing."""
    _here.give_up = give_up


def make_way() -> None:
    """Give up what others need: this thread is about to block."""
    give_up = _here.give_up
    if give_up is not None:
        give_up()
