"""Replies are parsed at any split of their bytes, and what is not one is refused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import PeerViolation
from holdfast.store.etcd.http import reply as etcd_reply
from holdfast.store.etcd.http.reply import HttpReply, ReplyParser, decoding, parse_object

SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: a\r\ncontent-LENGTH: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;x=y\r\n,\r\n6\r\n world\r\n0\r\nTrailer: t\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
NOTHING = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def parse(data: bytes, *cuts: int) -> tuple[ReplyParser, bytes]:
    parser = ReplyParser()
    body = b""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        body += parser.feed(data[start:end])
    return parser, body


replies = pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (SIZED, 200, b"hello"),
        (CHUNKED, 200, b"hello, world"),
        (INTERIM, 404, b"{}"),
        (EMPTY, 204, b""),
        (NOTHING, 200, b""),
    ],
    ids=["sized", "chunked", "interim", "no content", "empty"],
)


@replies
@pytest.mark.parametrize("cuts", [(), range(300)], ids=["whole", "byte by byte"])
def test_a_reply_is_parsed(data: bytes, status: int, body: bytes, cuts: Sequence[int]) -> None:
    parser, found = parse(data, *cuts)
    assert (parser.status, found, parser.done, parser.keep_alive) == (status, body, True, True)
    assert parser.closed()


@replies
@given(cuts=st.lists(st.integers(0, 300), max_size=6))
def test_a_reply_is_parsed_at_any_split(
    data: bytes, status: int, body: bytes, cuts: list[int]
) -> None:
    test_a_reply_is_parsed(data, status, body, cuts)


def test_a_reply_is_not_done_before_its_end() -> None:
    for data in (SIZED, CHUNKED):
        for cut in range(len(data)):
            parser = ReplyParser()
            parser.feed(data[:cut])
            assert not parser.done
            assert not parser.closed()


def test_headers_are_found_by_their_lower_case_names() -> None:
    parser, _ = parse(SIZED)
    assert parser.headers == {"content-type": "a", "content-length": "5"}


def test_a_reply_without_a_length_ends_with_the_connection() -> None:
    parser, body = parse(b"HTTP/1.1 200 OK\r\n\r\nabc", 20)
    assert body == b"abc"
    assert not parser.done
    assert parser.closed()
    assert not parser.keep_alive


@pytest.mark.parametrize(
    ("head", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_whether_the_connection_stays(head: bytes, keep: bool) -> None:
    parser, _ = parse(head + b"Content-Length: 0\r\n\r\n")
    assert parser.keep_alive is keep


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"X",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
def test_what_is_no_reply_is_refused(data: bytes) -> None:
    with pytest.raises(PeerViolation) as caught:
        parse(data)
    assert len(str(caught.value)) < 200


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_any_bytes_give_a_reply_or_a_typed_error(data: bytes, cuts: list[int]) -> None:
    for start in (b"", b"HTTP/1.1 200 OK\r\n", SIZED[:-5], CHUNKED[:60]):
        try:
            parse(start + data, *cuts)
        except PeerViolation:
            pass


def test_a_body_has_a_cap_and_a_stream_is_counted_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_reply, "BODY_BYTES_MAX", 4)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with pytest.raises(PeerViolation, match="more than 4 bytes"):
        parse(head + b"3\r\nabc\r\n3\r\ndef\r\n")
    parser = ReplyParser()
    assert parser.feed(head + b"3\r\nabc\r\n") == b"abc"
    parser.forget_size()
    assert parser.feed(b"3\r\ndef\r\n") == b"def"


def test_json() -> None:
    assert HttpReply(200, {}, b'{"a": 1}').json() == {"a": 1}
    for text in (b"", b"[]", b"null", b"{", b"404 page not found\n", b"\xff", b"[" * 100_000):
        with pytest.raises(PeerViolation, match="not a JSON object"):
            parse_object(text)


def test_a_reply_that_cannot_be_taken_apart_is_a_violation() -> None:
    message: dict[str, str] = {}
    with pytest.raises(PeerViolation, match="^etcd's reply is malformed: KeyError"), decoding():
        message["header"]


def test_what_goes_wrong_in_our_own_code_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), decoding():
        raise ZeroDivisionError
