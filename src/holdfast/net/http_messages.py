"""Requests and replies of HTTP/1.1 as bytes: so much of it as a small server needs.

Guarantees
    HM-1  Whatever bytes come, `parse_request` returns a request or raises HttpRefused.
    HM-2  A header of a reply is one line: text that would break it is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import field
from urllib.parse import parse_qsl

from holdfast.errors import InternalError, PeerViolation
from holdfast.records import dataclass

__all__ = [
    "HTML",
    "JSON",
    "REQUEST_BYTES_MAX",
    "HttpRefused",
    "ServedReply",
    "ServedRequest",
    "parse_request",
    "refusal",
    "render_head",
    "render_reply",
]

REQUEST_BYTES_MAX = 8192
FIELDS_MAX = 32
JSON = "application/json"
HTML = "text/html; charset=utf-8"

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/1\.[0-9]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")


class HttpRefused(PeerViolation):
    """What came is no request that can be answered; `status` says why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"a request of HTTP is refused: {_PHRASES[status]}")
        self.status = status


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request without a body. Names of headers are in lower case."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServedReply:
    """What is answered; `headers` come beside those that every reply has."""

    content: str
    kind: str = JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


def parse_request(head: bytes) -> ServedRequest:
    """Read a request, up to its empty line; HttpRefused if it is none (HM-1)."""
    line, *rest = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    found = _LINE.fullmatch(line)
    if found is None:
        raise HttpRefused(400)
    if found[1] not in {b"GET", b"HEAD"}:
        raise HttpRefused(405)
    headers = _headers(rest)
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise HttpRefused(400)  # a body, which nothing here takes
    path, _, query = found[2].decode("ascii", "replace").partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise HttpRefused(400) from None
    return ServedRequest(found[1].decode(), path, dict(pairs), headers)


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise HttpRefused(400)
        name = found[1].decode().lower()
        if name in headers and name in {"host", "cookie", "content-length"}:
            raise HttpRefused(400)  # two readers of it might take two different ones
        headers[name] = found[2].decode("latin-1")
    return headers


def refusal(status: int, why: str = "") -> ServedReply:
    """Return the reply that refuses a request."""
    return ServedReply(json.dumps({"error": why or _PHRASES[status]}) + "\n", JSON, status)


def render_reply(reply: ServedReply, *, with_content: bool = True) -> bytes:
    """Return a whole reply, after which the connection is closed."""
    content = reply.content.encode()
    head = render_head(
        reply.status,
        ("Content-Type", reply.kind),
        ("Content-Length", str(len(content))),
        *reply.headers,
    )
    return head + (content if with_content else b"")


def render_head(status: int, *headers: tuple[str, str]) -> bytes:
    """Return the head of a reply (HM-2)."""
    lines = [f"HTTP/1.1 {status} {_PHRASES[status]}"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines += ["Allow: GET, HEAD", "Cache-Control: no-store", "Connection: close"]
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise InternalError(f"a header of HTTP is no plain line: {lines!r:.200}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
