"""What carries frames between two peers that have already proved themselves."""

from __future__ import annotations

from typing import Protocol

from holdfast.clock import Deadline

__all__ = ["Transport"]


class Transport(Protocol):
    """A two-way stream of frames. One thread may receive while others send, one at a time."""

    peer: str
    """The other side's address, for messages."""

    def send(self, payload: bytes, deadline: Deadline) -> None:
        """Send one frame. Unavailable if the connection is over.

        Unavailable too if the peer does not take the frame by the deadline: the stream is
        broken then, in the middle of a frame.
        """
        ...

    def receive(self, wait_s: float) -> list[bytes]:
        """Return the frames that arrive within `wait_s` seconds, perhaps none.

        Unavailable if the connection is over, PeerViolation if the peer broke the framing.
        """
        ...

    def close(self) -> None:
        """Close, and wake the thread that receives. Idempotent; any thread."""
        ...

    def release(self) -> None:
        """Give up this process's copy after a fork; the parent's connection goes on."""
        ...
