"""Threads, which the system may refuse: it then has no room, and that is no bug of ours."""

from __future__ import annotations

import threading

from holdfast.errors import Unavailable

__all__ = ["start_thread"]


def start_thread(thread: threading.Thread) -> None:
    """Start it; Unavailable if the system has no room for another one."""
    try:
        thread.start()
    except RuntimeError as error:
        raise Unavailable(f"no thread can be started: {error}") from error
