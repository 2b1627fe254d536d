"""The replies of an HTTP/1.1 server, parsed as their bytes come. Pure.

`ReplyParser` takes bytes at any split and gives pieces of the body; what is not HTTP, or exceeds
a cap, is a PeerViolation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any, assert_never

from holdfast.errors import PeerViolation
from holdfast.records import dataclass

__all__ = [
    "BODY_BYTES_MAX",
    "HEAD_BYTES_MAX",
    "HttpReply",
    "ReplyParser",
    "decoding",
    "parse_object",
]

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 1 << 30
_LINE_BYTES_MAX = 1024


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
            case _:
                assert_never(self._state)

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
class HttpReply:
    """A whole reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; PeerViolation if it is something else."""
        return parse_object(self.body)


@contextmanager
def decoding() -> Iterator[None]:
    """Turn what goes wrong in taking a reply apart into PeerViolation."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise PeerViolation(f"etcd's reply is malformed: {error!r}") from None


def parse_object(text: bytes) -> dict[str, Any]:
    """Read a JSON object; PeerViolation if it is something else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise PeerViolation(f"not a JSON object: {text[:80]!r}")
    return found
