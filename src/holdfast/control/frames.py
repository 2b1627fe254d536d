"""One frame on a socket, within a deadline."""

from __future__ import annotations

import socket

from holdfast.clock import Deadline
from holdfast.errors import TimeoutExpired
from holdfast.net.frames import FrameDecoder, encode_frame

__all__ = ["receive_frame", "send_frame"]

_READ_BYTES = 1 << 16


def send_frame(sock: socket.socket, payload: bytes, cap: int, deadline: Deadline) -> None:
    """Send a frame of at most `cap` bytes; OSError, or TimeoutError, if it cannot be."""
    sock.settimeout(deadline.remaining())
    sock.sendall(encode_frame(payload, cap))


def receive_frame(sock: socket.socket, cap: int, deadline: Deadline) -> bytes:
    """Wait for one frame of at most `cap` bytes; PeerViolation if it is longer.

    TimeoutExpired if the deadline passes first, OSError if the other side closes.
    """
    decoder = FrameDecoder(cap)
    while not deadline.passed():
        sock.settimeout(deadline.remaining())
        try:
            data = sock.recv(_READ_BYTES)
        except (TimeoutError, BlockingIOError):
            break
        if not data:
            raise ConnectionResetError("the other side has closed the connection")
        if frames := decoder.feed(data):
            return frames[0]
    raise TimeoutExpired("no whole message came in time")
