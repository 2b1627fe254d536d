"""A small HTTP/1.1 client: replies parsed as they come, a deadline on every call.

`ReplyParser` is pure: bytes in, a status and pieces of a body out, at any split of the bytes and
within caps. `HttpConnection` is one socket that is kept alive between calls.

Why not `http.client`: its timeouts are for each read, not for a call, and a read that times out
in the middle of a streamed reply loses what it had; a watch needs both.

A failed exchange is one of two things, and the difference matters to a write:
    NotSent     the request never left, so nothing happened;
    Lost        it left, at least in part, and no reply came: nobody knows what happened.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, PeerViolation, Unavailable
from holdfast.net.address import Address
from holdfast.net.tcp import open_socket

__all__ = [
    "HttpConnection",
    "Lost",
    "NoAnswer",
    "NotSent",
    "Reply",
    "ReplyParser",
    "Request",
    "parse_object",
]

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 1 << 30
_LINE_BYTES_MAX = 1024
_READ_BYTES = 256 * 1024
# A socket takes a timeout of 0 as "do not block", and refuses one of 10^12 years.
_TIMEOUT_MIN_S, _TIMEOUT_MAX_S = 0.001, 1e6


class NotSent(Unavailable):
    """The request never left: nothing happened."""


class Lost(Unavailable):
    """The request left, and no whole reply came: it may or may not have been performed."""


class NoAnswer(Lost):
    """The request left, and the deadline passed before the reply was there."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask for."""

    method: str
    path: str
    body: bytes = b""
    kind: str = "application/json"
    headers: tuple[str, ...] = ()


# The parser.


class _State(Enum):
    HEAD = auto()
    LENGTH = auto()  # a body of known length
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    UNTIL_CLOSED = auto()
    DONE = auto()


class ReplyParser:
    """Parses one reply. Pure; raises PeerViolation on anything that is not HTTP/1.x."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.keep_alive = False
        self._state = _State.HEAD
        self._buffer = bytearray()
        self._left = 0
        self._size = 0

    @property
    def done(self) -> bool:
        """Whether the whole reply has been seen."""
        return self._state is _State.DONE

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the wire and return what they add to the body."""
        self._buffer += data
        body = bytearray()
        while self._step(body):
            pass
        self._size += len(body)
        if self._size > BODY_BYTES_MAX:
            raise PeerViolation(f"a reply of more than {BODY_BYTES_MAX} bytes")
        return bytes(body)

    def forget_size(self) -> None:
        """Start counting the body afresh: a stream has no end, and its reader keeps its own cap."""
        self._size = 0

    def closed(self) -> bool:
        """Say whether the reply is whole, given that the server closed the connection."""
        return self._state in (_State.DONE, _State.UNTIL_CLOSED)

    def _step(self, body: bytearray) -> bool:
        """Consume one element of the buffer; False when it needs more bytes."""
        match self._state:
            case _State.HEAD:
                return self._take_head()
            case _State.LENGTH | _State.CHUNK:
                return self._take_counted(body)
            case _State.CHUNK_SIZE:
                line = self._take_line()
                return line is not None and self._start_chunk(line)
            case _State.CHUNK_END:
                line = self._take_line()
                if line:
                    raise PeerViolation("a chunk of a reply is longer than it said")
                if line is not None:
                    self._state = _State.CHUNK_SIZE
                return line is not None
            case _State.TRAILER:
                line = self._take_line()
                if line == b"":
                    self._state = _State.DONE
                return line is not None
            case _State.UNTIL_CLOSED:
                body += self._buffer
                self._buffer.clear()
                return False
            case _State.DONE:
                if self._buffer:
                    raise PeerViolation("bytes after the end of a reply")
                return False

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            self._check_beginning()
            return False
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = lines[0].partition(" ")
        code = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not (code.isascii() and code.isdigit()):
            raise PeerViolation(f"not an HTTP reply: {lines[0]!r:.80}")
        self.headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        self.status = int(code)
        if 100 <= self.status < 200:
            return True  # an interim reply: the real one follows
        says = self.headers.get("connection", "").lower()
        self.keep_alive = says != "close" and (version == "HTTP/1.1" or says == "keep-alive")
        self._start_body()
        return True

    def _check_beginning(self) -> None:
        start = bytes(self._buffer[:5])
        if not b"HTTP/".startswith(start):
            raise PeerViolation(f"not an HTTP reply: {bytes(self._buffer[:40])!r}")
        if len(self._buffer) > HEAD_BYTES_MAX:
            raise PeerViolation(f"the head of a reply exceeds {HEAD_BYTES_MAX} bytes")

    def _start_body(self) -> None:
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self._state = _State.DONE
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._state = _State.CHUNK_SIZE
        elif length is not None:
            if not (length.isascii() and length.isdigit() and int(length[:20]) <= BODY_BYTES_MAX):
                raise PeerViolation(f"content-length {length!r:.40} of a reply")
            self._left = int(length)
            self._state = _State.LENGTH if self._left else _State.DONE
        else:
            self.keep_alive = False
            self._state = _State.UNTIL_CLOSED

    def _start_chunk(self, line: bytes) -> bool:
        try:
            self._left = int(line.partition(b";")[0].strip(), 16)
        except ValueError:
            raise PeerViolation(f"chunk size {line!r:.40} of a reply") from None
        if not 0 <= self._left <= BODY_BYTES_MAX:
            raise PeerViolation(f"chunk size {self._left} of a reply")
        self._state = _State.CHUNK if self._left else _State.TRAILER
        return True

    def _take_counted(self, body: bytearray) -> bool:
        if not self._buffer:
            return False
        piece = self._buffer[: self._left]
        del self._buffer[: self._left]
        body += piece
        self._left -= len(piece)
        if self._left:
            return False
        self._state = _State.DONE if self._state is _State.LENGTH else _State.CHUNK_END
        return True

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > _LINE_BYTES_MAX:
                raise PeerViolation("an endless line in a reply")
            return None
        line = bytes(self._buffer[:end]).rstrip(b"\r")
        del self._buffer[: end + 1]
        return line


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; PeerViolation if it is something else."""
        return parse_object(self.body)


def parse_object(text: bytes) -> dict[str, Any]:
    """Read a JSON object; PeerViolation if it is something else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise PeerViolation(f"not a JSON object: {text[:80]!r}")
    return found


# The connection.


class HttpConnection:
    """One socket to one address. Not thread-safe, except for `shut`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._socket: socket.socket | None = None

    def open(self, deadline: Deadline) -> None:
        """Connect, unless a connection from earlier is still good. NotSent names the step."""
        if self._socket is not None and _silent(self._socket):
            return
        self.close()
        try:
            self._socket = open_socket(self.address, deadline)
        except Unavailable as error:
            raise NotSent(str(error), step=error.step, address=error.address) from None

    def call(self, request: Request, deadline: Deadline) -> Reply:
        """Send one request and return its reply. NotSent, Lost, or PeerViolation."""
        parts: list[bytes] = []
        parser = self.send(request, deadline)
        try:
            while not parser.done:
                data = self._receive(deadline)
                if data:
                    parts.append(self._parse(parser, data))
                elif parser.closed():
                    break
                else:
                    raise self._lost("it closed the connection")
        except HoldfastError:
            self.close()
            raise
        if not parser.keep_alive:
            self.close()
        return Reply(parser.status, parser.headers, b"".join(parts))

    def send(self, request: Request, deadline: Deadline) -> ReplyParser:
        """Send one request and return the parser for its reply. NotSent or Lost."""
        self.open(deadline)
        sock = self._sure()
        head = [
            f"{request.method} {request.path} HTTP/1.1",
            f"Host: {self.address}",
            f"Content-Type: {request.kind}",
            f"Content-Length: {len(request.body)}",
            *request.headers,
            "\r\n",
        ]
        try:
            sock.settimeout(_timeout(deadline))
            sock.sendall("\r\n".join(head).encode() + request.body)
        except OSError as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise self._no_answer() from None
            raise self._lost(error.strerror or str(error)) from None
        return ReplyParser()

    def read_body(self, parser: ReplyParser, deadline: Deadline) -> bytes:
        """Return the next bytes of a streamed body, waiting for some.

        b"" if only a head or a frame of it came; NoAnswer at the deadline, with nothing lost;
        Lost at the end of the stream.
        """
        data = self._receive(deadline)
        if not data:
            raise self._lost("it closed the connection")
        body = self._parse(parser, data)
        parser.forget_size()
        if parser.done and not body:
            raise self._lost("it ended the stream")
        return body

    def readable(self) -> bool:
        """Say whether bytes, or the end of the connection, can be read without waiting."""
        return self._socket is not None and not _silent(self._socket)

    def shut(self) -> None:
        """Wake whoever reads or writes, from any thread; the owner then closes."""
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let the socket go; the next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _receive(self, deadline: Deadline) -> bytes:
        """Return the next bytes, b"" at the end of the connection."""
        sock = self._sure()
        try:
            sock.settimeout(_timeout(deadline))
            return sock.recv(_READ_BYTES)
        except TimeoutError:
            raise self._no_answer() from None
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None

    def _sure(self) -> socket.socket:
        sock = self._socket
        if sock is None:
            raise self._lost("it is closed")
        return sock

    def _parse(self, parser: ReplyParser, data: bytes) -> bytes:
        try:
            return parser.feed(data)
        except PeerViolation as error:
            raise PeerViolation(f"{self.address}: {error}", address=str(self.address)) from None

    def _lost(self, why: str) -> Lost:
        return Lost(f"connection to {self.address} lost: {why}", address=str(self.address))

    def _no_answer(self) -> NoAnswer:
        return NoAnswer(f"{self.address} did not answer in time", address=str(self.address))


def _timeout(deadline: Deadline) -> float | None:
    remaining = deadline.remaining()
    return None if remaining is None else min(max(remaining, _TIMEOUT_MIN_S), _TIMEOUT_MAX_S)


def _silent(sock: socket.socket) -> bool:
    """Say whether there is nothing to read; on an idle connection that could only be its end."""
    poll = select.poll()
    try:
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)
    except (OSError, ValueError):
        return False
