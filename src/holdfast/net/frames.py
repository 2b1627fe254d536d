"""Frames: a 4-byte big-endian length, then that many bytes. Nothing else.

A length is judged before a single byte of the frame is kept, so no peer can make us allocate
more than the cap by announcing more.
"""

from __future__ import annotations

import struct

from holdfast.errors import PeerViolation, UsageError

__all__ = ["FRAME_BYTES_MAX", "FrameDecoder", "check_frame", "encode_frame"]

FRAME_BYTES_MAX = 32 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_HEADER = _LENGTH.size


def check_frame(payload: bytes, cap: int = FRAME_BYTES_MAX) -> None:
    """Raise UsageError if the payload exceeds the cap."""
    if len(payload) > cap:
        raise UsageError(f"message of {len(payload)} bytes: at most {cap} are allowed")


def encode_frame(payload: bytes, cap: int = FRAME_BYTES_MAX) -> bytes:
    """Return the payload with its length in front. UsageError if it exceeds the cap."""
    check_frame(payload, cap)
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder:
    """Cut a stream of bytes into frames.

    Costs time in proportion to the bytes fed, however they are split; holds at most one frame.
    """

    def __init__(self, cap: int = FRAME_BYTES_MAX) -> None:
        self._cap = cap
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes and return the frames that they complete.

        PeerViolation for a length over the cap; the stream cannot be used after that.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < _HEADER or len(self._buffer) < self._whole(self._buffer, 0):
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        frames = []
        start, size = 0, len(data)
        while size - start >= _HEADER:
            end = self._whole(data, start)
            if end > size:
                break
            frames.append(data[start + _HEADER : end])
            start = end
        if start < size:
            self._buffer += data[start:]
        return frames

    def pending(self) -> int:
        """Return how many bytes of an unfinished frame are held."""
        return len(self._buffer)

    def _whole(self, data: bytes | bytearray, start: int) -> int:
        """Return where the frame that begins at `start` ends."""
        (length,) = _LENGTH.unpack_from(data, start)
        if length > self._cap:
            raise PeerViolation(f"a frame of {length} bytes was announced, the cap is {self._cap}")
        return start + _HEADER + int(length)
