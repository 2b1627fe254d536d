"""The end of an ssh connection on the host that it started a job on: it ends what it started.

A thread reads what comes over it: signals, which this process then gets, and signs of life. When
the connection is lost, this process gets SIGTERM.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from signal import Signals

from holdfast.clock import Deadline
from holdfast.errors import PeerViolation
from holdfast.on.order import ORDER_BYTES_MAX, SILENCE_S, Order, decode_order, decode_signal
from holdfast.threads import start_thread

__all__ = ["follow", "read_order"]

_ORDER_WITHIN_S = 60.0


def read_order(fd: int, within_s: float = _ORDER_WITHIN_S) -> Order:
    """Read the order that comes first, and no byte more. PeerViolation if there is none in time."""
    deadline, line = Deadline.after(within_s), b""
    while not line.endswith(b"\n") and len(line) < ORDER_BYTES_MAX:
        # One byte at a time: what comes after the order belongs to `follow`.
        if not select.select([fd], [], [], deadline.remaining())[0] or not (one := os.read(fd, 1)):
            break
        line += one
    return decode_order(line)


def _to_this_process(number: Signals) -> None:
    os.kill(os.getpid(), number)  # wakes the main thread, which handles it


def follow(
    fd: int, *, silence_s: float = SILENCE_S, send: Callable[[Signals], None] = _to_this_process
) -> None:
    """Follow a descriptor from now on, in a thread that ends with the connection; close it then."""
    start_thread(
        threading.Thread(
            target=_follow, args=(fd, silence_s, send), name="holdfast-lifeline", daemon=True
        )
    )


def _follow(fd: int, silence_s: float, send: Callable[[Signals], None]) -> None:
    rest = b""
    try:
        while select.select([fd], [], [], silence_s)[0] and (chunk := os.read(fd, 4096)):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if (number := decode_signal(line)) is not None:
                    send(number)
    except (PeerViolation, OSError):
        pass  # as good as lost
    finally:
        os.close(fd)
    send(Signals.SIGTERM)
