"""Pickle streams with large buffers outside: a file for a pickler, which keeps these apart.

Arrays offer their memory to a pickler themselves (`PickleBuffer`, `keep`). Bytes objects cannot.
But the pickler writes a bytes object of 64 KiB or more to its file as it is, without a copy, in a
`write` of its own; the `write` before ends with the opcode and the length that announce it. Where a
stream finds that, it keeps the object, and puts the opcode in place that takes the next buffer from
outside. So large bytes are never copied, wherever they lie in a value.

Guarantees
    PZ-1  Reading the body with the buffers gives what reading the whole pickle would, whichever
          parts were recognised: what is not recognised stays in the body.
    PZ-2  Buffers of bytes objects are bytes, and arrive as bytes; buffers of bytearrays are copies,
          since sending the original would block its resizing meanwhile.
"""

from __future__ import annotations

import pickle

from holdfast.rpc.wire.codec import BUFFERS_MAX
from holdfast.rpc.wire.messages import Buffer

__all__ = ["BYTES_OUTSIDE", "OUTSIDE_BYTES", "PickleStream"]

OUTSIDE_BYTES = 16 * 1024
"""Smaller arrays cost less inside the pickle."""
BYTES_OUTSIDE = 256 * 1024
"""Smaller bytes objects cost less inside the pickle, though they are copied. The pickler writes
those of 64 KiB or more apart."""

_ANNOUNCE = {
    bytes: ((pickle.BINBYTES, 4), (pickle.BINBYTES8, 8)),
    bytearray: ((pickle.BYTEARRAY8, 8),),
}


class PickleStream:
    """The file of one pickler, and the buffers that were put outside of it."""

    __slots__ = ("_chunks", "_outside")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._outside: list[pickle.PickleBuffer | bytes | bytearray] = []

    def write(self, chunk: Buffer | pickle.PickleBuffer) -> None:
        """Add to the stream. For the pickler."""
        if not (isinstance(chunk, (bytes, bytearray)) and self._put_outside(chunk)):
            self._chunks.append(chunk if type(chunk) is bytes else bytes(chunk))

    def keep(self, buffer: pickle.PickleBuffer) -> bool:
        """Put a buffer outside; return whether it stays inside instead. For the pickler."""
        with memoryview(buffer) as view:
            inside = view.nbytes < OUTSIDE_BYTES or not view.contiguous
        inside = inside or len(self._outside) >= BUFFERS_MAX
        if not inside:
            self._outside.append(buffer)
        return inside

    def body(self) -> bytes:
        """Return the stream without what lies outside."""
        chunks = self._chunks
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def buffers(self) -> list[Buffer]:
        """Return what lies outside, in the order of the stream."""
        if not self._outside:
            return []
        return [one.raw() if isinstance(one, pickle.PickleBuffer) else one for one in self._outside]

    def _put_outside(self, payload: bytes | bytearray) -> bool:
        """Put a large bytes object outside, if the stream announces it; say whether it did."""
        if len(payload) < BYTES_OUTSIDE or not self._chunks or len(self._outside) >= BUFFERS_MAX:
            return False
        before = self._chunks[-1]
        for opcode, width in _ANNOUNCE.get(type(payload), ()):
            if before.endswith(opcode + len(payload).to_bytes(8, "little")[:width]):
                self._chunks[-1] = before[: -1 - width] + pickle.NEXT_BUFFER
                self._outside.append(payload if type(payload) is bytes else bytearray(payload))
                return True
        return False
