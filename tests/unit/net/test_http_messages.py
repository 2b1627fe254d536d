"""Requests and replies of HTTP: strict reading, plain writing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InternalError
from holdfast.net.http_messages import (
    FIELDS_MAX,
    JSON,
    HttpRefused,
    ServedReply,
    ServedRequest,
    parse_request,
    refusal,
    render_head,
    render_reply,
)


def test_a_request_is_read() -> None:
    head = b"GET /a/b?rank=3&x=%41+b&empty= HTTP/1.1\r\nHost: vm:1\r\nX-Odd:\t a b \r\n\r\n"
    query = {"rank": "3", "x": "A b", "empty": ""}
    headers = {"host": "vm:1", "x-odd": "a b"}
    assert parse_request(head) == ServedRequest("GET", "/a/b", query, headers)
    assert parse_request(b"HEAD /\xff HTTP/1.0") == ServedRequest("HEAD", "/\ufffd")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET",
        b"GET /",
        b"GET / HTTP/2.0",
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b"GET /a b HTTP/1.1",
        b"\x16\x03\x01 / HTTP/1.1",
        b"GET / HTTP/1.1\r\nno header",
        b"GET / HTTP/1.1\r\nHost : a",
        b"GET / HTTP/1.1\r\nA: b\r\n folded",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b",
        b"GET / HTTP/1.1\r\nCookie: a=1\r\ncookie: a=2",
        b"GET / HTTP/1.1\r\nContent-Length: 1",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked",
        b"GET /?" + b"a=1&" * FIELDS_MAX + b"a=1 HTTP/1.1",
    ],
)
def test_what_is_no_request_is_refused(head: bytes) -> None:
    """HM-1."""
    with pytest.raises(HttpRefused) as caught:
        parse_request(head)
    assert caught.value.status == 400


def test_only_reading_is_allowed() -> None:
    with pytest.raises(HttpRefused) as caught:
        parse_request(b"POST / HTTP/1.1")
    assert caught.value.status == 405


@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda b: b"GET /" + b + b" HTTP/1.1"))
def test_hm1_any_bytes_are_a_request_or_refused(head: bytes) -> None:
    try:
        assert parse_request(head).method in {"GET", "HEAD"}
    except HttpRefused:
        pass


def test_a_reply_is_written() -> None:
    reply = ServedReply("ä\n", "text/plain", 200, (("X-A", "b"),))
    assert render_reply(reply) == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nX-A: b\r\n"
        b"Allow: GET, HEAD\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n\xc3\xa4\n"
    )
    assert render_reply(reply, with_content=False).endswith(b"close\r\n\r\n")


@pytest.mark.parametrize("value", ["a\r\nX-B: c", "a\n", "ä", "\x00"])
def test_a_header_is_one_plain_line(value: str) -> None:
    """HM-2."""
    with pytest.raises(InternalError, match="no plain line"):
        render_head(200, ("X-A", value))


def test_a_refusal_is_json() -> None:
    assert json.loads(refusal(404).content) == {"error": "Not Found"}
    reply = refusal(403, 'say "a\\b"')
    assert (reply.status, reply.kind, json.loads(reply.content)) == (
        403,
        JSON,
        {"error": 'say "a\\b"'},
    )
