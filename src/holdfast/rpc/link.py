"""One connection between two agents: messages in, messages out, nothing else.

Small messages cost one system call each way. The buffers of a large one are sent from where they
lie, and received into the memory that their reader keeps.

A link knows no deadline of its own: the socket's timeout is set by who uses it. A link that timed
out, or failed in any way, is closed, since nobody knows what is still on its way.
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import Sequence

from holdfast.rpc.codec import HEADER_BYTES, Head, decode_head, decode_lengths, encode_head
from holdfast.rpc.messages import Buffer, Message

__all__ = ["Link", "LinkClosed"]

_READ_BYTES = 64 * 1024
_JOIN_BYTES = 4 * 1024  # copying so little costs less than a vector of two
_VECTOR_MAX = 512  # Linux takes 1,024 pieces in one call
_MAPPED_BYTES = 1024 * 1024


class LinkClosed(ConnectionError):
    """The connection is over; the message says how, in the system's words."""


class Link:
    """A connection whose handshake is over.

    One thread may send while another one receives; not two of a kind.
    """

    def __init__(self, sock: socket.socket, beginning: bytes = b"") -> None:
        self._sock = sock
        self._buffer = bytearray(max(_READ_BYTES, len(beginning)))
        self._buffer[: len(beginning)] = beginning
        self._view = memoryview(self._buffer)
        self._start, self._end = 0, len(beginning)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._sock.fileno()

    def set_timeout(self, seconds: float | None) -> None:
        """Let a call take at most so long: TimeoutError then."""
        self._sock.settimeout(seconds)

    def close(self) -> None:
        """Hang up. From any thread; who waits in `receive` hears of it. Idempotent."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was over already
        self._sock.close()

    # Out.

    def send(self, message: Message) -> None:
        """Send one message. Blocks until the system has taken all of it."""
        head, body = encode_head(message), message.body
        if not message.buffers and len(body) <= _JOIN_BYTES:
            self._send_bytes(head + body)
        else:
            self._send_parts([head, body, *message.buffers])

    def send_all(self, messages: Sequence[Message]) -> None:
        """Send several messages with as few system calls as it takes."""
        parts: list[Buffer] = []
        small = bytearray()
        for message in messages:
            small += encode_head(message)
            if len(message.body) <= _JOIN_BYTES:
                small += message.body
            else:
                parts += (small, message.body)
                small = bytearray()
            if message.buffers:
                parts += (small, *message.buffers)
                small = bytearray()
        if parts:
            self._send_parts([*parts, small])
        else:
            self._send_bytes(small)

    def _send_bytes(self, data: bytes | bytearray) -> None:
        try:
            sent = self._sock.send(data)
            if sent < len(data):
                self._sock.sendall(memoryview(data)[sent:])
        except (BrokenPipeError, ConnectionResetError):
            raise LinkClosed("Connection reset by peer") from None
        except OSError as error:
            raise _closed(error) from None

    def _send_parts(self, parts: list[Buffer]) -> None:
        views = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
        try:
            while views:
                sent = self._sock.sendmsg(views[:_VECTOR_MAX])
                done = 0
                while done < len(views) and sent >= views[done].nbytes:
                    sent -= views[done].nbytes
                    done += 1
                del views[:done]
                if sent:
                    views[0] = views[0][sent:]
        except (BrokenPipeError, ConnectionResetError):
            raise LinkClosed("Connection reset by peer") from None
        except OSError as error:
            raise _closed(error) from None

    # In.

    def receive(self) -> Message:
        """Return the next message. Blocks; LinkClosed at the connection's end."""
        while self._end - self._start < HEADER_BYTES:
            self._fill()
        head = decode_head(self._buffer, self._start)
        self._start += HEADER_BYTES
        lengths = decode_lengths(self._take(8 * head.buffers), head) if head.buffers else ()
        body = self._take(head.body_bytes)
        buffers = [self._take(length) for length in lengths]
        return Message(head.kind, head.call, body, buffers, head.budget_ms, head.once)

    def ready(self) -> bool:
        """Say whether the next message is small and here already: `receive` will not block."""
        here = self._end - self._start
        if here < HEADER_BYTES:
            return False
        head: Head = decode_head(self._buffer, self._start)
        return head.buffers == 0 and here >= HEADER_BYTES + head.body_bytes

    def _take(self, size: int) -> Buffer:
        """Return the next bytes, in memory of their own."""
        start = self._start
        if size <= self._end - start:
            self._start = start + size
            return bytes(self._view[start : start + size])
        target: Buffer = (
            bytearray(size) if size < _MAPPED_BYTES else memoryview(mmap.mmap(-1, size))
        )
        view = memoryview(target)
        here = self._end - start
        view[:here] = self._view[start : self._end]
        self._start = self._end = 0
        while here < size:
            # What is small is read with what follows it.
            if size - here < _READ_BYTES // 2:
                self._fill()
                more = min(size - here, self._end)
                view[here : here + more] = self._view[:more]
                self._start = more
            else:
                more = self._receive_into(view[here:])
            here += more
        return target

    def _fill(self) -> None:
        """Read what is there, behind what is left."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            here = self._end - self._start
            self._view[:here] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, here
        self._end += self._receive_into(self._view[self._end :])

    def _receive_into(self, view: memoryview) -> int:
        try:
            size = self._sock.recv_into(view)
        except ConnectionResetError:
            raise LinkClosed("Connection reset by peer") from None
        except OSError as error:
            raise _closed(error) from None
        if not size:
            raise LinkClosed("Connection closed by peer")
        return size


def _closed(error: OSError) -> Exception:
    """Return what to raise for an error of the system: a timeout stays one."""
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return error
    return LinkClosed(f"Connection closed by peer ({error.strerror or error})")
