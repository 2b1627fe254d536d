"""The reading and writing of torch's protocol: recorded exchanges, every cut, every cap, noise."""

from __future__ import annotations

import inspect
import random
import tracemalloc
from collections.abc import Iterable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import PeerViolation
from holdfast.store.c10d import messages as c10d
from holdfast.store.c10d.wire import (
    KEY_BYTES_MAX,
    KEYS_MAX,
    KNOWN_BYTES_MAX,
    KNOWN_MAX,
    MESSAGE_BYTES_MAX,
    VALUE_BYTES_MAX,
    Fields,
    FieldStream,
    KnownRequests,
    RequestParser,
    encode_bytes,
    encode_i64,
    encode_keys,
    encode_request,
    encode_u32,
    read_i64,
    read_key_list,
    read_u8,
    read_u32,
    read_value,
    read_values,
)
from tests.unit.store.c10d.vectors import VECTORS, Vector

R = TypeVar("R")

HELLO = encode_request(c10d.Validate())

keys = st.binary(max_size=40)
values = st.binary(max_size=200)
counts = st.integers(-(1 << 63), (1 << 63) - 1)
some_keys = st.lists(keys, max_size=5).map(tuple)
requests = st.one_of(
    st.builds(c10d.Set, keys, values),
    st.builds(c10d.CompareSet, keys, values, values),
    st.builds(c10d.Get, keys),
    st.builds(c10d.Add, keys, counts),
    st.builds(c10d.Check, some_keys),
    st.builds(c10d.Wait, some_keys),
    st.just(c10d.NumKeys()),
    st.builds(c10d.Delete, keys),
    st.builds(c10d.Append, keys, values),
    st.builds(c10d.MultiGet, some_keys),
    st.builds(c10d.MultiSet, st.lists(st.tuples(keys, values), max_size=5).map(tuple)),
    st.just(c10d.CancelWait()),
    st.builds(c10d.Ping, st.integers(0, (1 << 32) - 1)),
    st.builds(c10d.QueuePush, keys, values),
    st.builds(c10d.QueuePop, keys),
    st.builds(c10d.QueueLen, keys),
    st.just(c10d.ListKeys()),
    st.builds(c10d.Barrier, keys, counts),
)


def parse(pieces: Iterable[bytes], parser: RequestParser | None = None) -> list[c10d.Request]:
    parser = parser or RequestParser()
    found = []
    for piece in pieces:
        parser.feed(piece)
        while (request := parser.next()) is not None:
            found.append(request)
    return found


def validated() -> RequestParser:
    parser = RequestParser()
    assert parse([HELLO], parser) == [c10d.Validate()]
    return parser


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


# Recorded exchanges.


@pytest.mark.parametrize("vector", VECTORS, ids=[vector.what for vector in VECTORS])
def test_a_recorded_request_reads_and_writes_as_recorded(vector: Vector) -> None:
    parser = RequestParser() if vector.requests == (c10d.Validate(),) else validated()
    assert tuple(parse([vector.sent], parser)) == vector.requests
    assert b"".join(map(encode_request, vector.requests)) == vector.sent
    assert parser.held == 0


def test_cw3_the_recorded_session_reads_alike_at_every_cut() -> None:
    session = b"".join(vector.sent for vector in VECTORS)
    whole = [request for vector in VECTORS for request in vector.requests]
    assert parse([session]) == whole
    assert parse(bytes([byte]) for byte in session) == whole
    for cut in range(len(session) + 1):
        assert parse([session[:cut], session[cut:]]) == whole


@given(st.lists(requests, max_size=8), st.randoms(use_true_random=False))
def test_cw3_what_is_written_reads_back_however_it_is_cut(
    sent: list[c10d.Request], rng: random.Random
) -> None:
    data = HELLO + b"".join(map(encode_request, sent))
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(12)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert parse(pieces) == [c10d.Validate(), *sent]


# Requests that were read before.


def parse_as_a_server(
    pieces: Iterable[bytes], parser: RequestParser
) -> tuple[list[c10d.Request], int]:
    """Return the requests, and how many of them were recognized."""
    found, recognized = [], 0
    for piece in pieces:
        known = parser.recognize(piece)
        if known is not None:
            recognized += 1
            found.append(known)
        else:
            found += parse([piece], parser)
    return found, recognized


@given(st.lists(requests, max_size=6), st.randoms(use_true_random=False))
def test_cw5_recognizing_requests_changes_nothing_however_they_are_cut(
    sent: list[c10d.Request], rng: random.Random
) -> None:
    known: KnownRequests = {}
    for _ in range(4):
        ends = [len(HELLO)]
        for request in sent:
            ends.append(ends[-1] + len(encode_request(request)))
        data = HELLO + b"".join(map(encode_request, sent))
        cuts = sorted({*ends[:-1], *(rng.randrange(len(data)) for _ in range(rng.randrange(3)))})
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        found, _ = parse_as_a_server(filter(None, pieces), RequestParser(known))
        assert found == [c10d.Validate(), *sent]


def test_cw5_a_request_is_recognized_the_second_time_on_any_connection() -> None:
    known: KnownRequests = {}
    data = encode_request(c10d.Add(b"k", 1))
    wanted: list[c10d.Request] = [c10d.Validate(), c10d.Add(b"k", 1)]
    assert parse_as_a_server([HELLO, data], RequestParser(known)) == (wanted, 0)
    assert parse_as_a_server([HELLO, data], RequestParser(known)) == (wanted, 1)


def test_cw5_nothing_is_recognized_before_the_handshake_within_a_request_or_after_a_violation() -> (
    None
):
    data = encode_request(c10d.Ping(7))
    known: KnownRequests = {data: c10d.Ping(7)}
    parser = RequestParser(known)
    assert parser.recognize(data) is None
    parse([HELLO], parser)
    assert parser.recognize(data) == c10d.Ping(7)
    parse([b"\x0d"], parser)
    assert parser.recognize(data) is None
    parse([b"1234"], parser)
    assert parser.recognize(data) == c10d.Ping(7)
    with pytest.raises(PeerViolation):
        parse([HELLO], parser)
    assert parser.recognize(data) is None


def test_cw5_what_is_remembered_is_bounded() -> None:
    known: KnownRequests = {}
    parser = RequestParser(known)
    parse([HELLO], parser)
    at_limit, over = (
        encode_request(c10d.Set(b"", b"v" * (KNOWN_BYTES_MAX - 17 + more))) for more in (0, 1)
    )
    parse([at_limit, over], parser)
    assert list(known) == [at_limit]
    for number in range(1, KNOWN_MAX):
        parse([encode_request(c10d.Ping(number))], parser)
    assert len(known) == KNOWN_MAX
    parse([encode_request(c10d.Ping(KNOWN_MAX))], parser)
    assert list(known.values()) == [c10d.Ping(KNOWN_MAX)]


# Violations.


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x00\xce\xf7\x85\x3d", "magic"),
        (b"GET / HTTP/1.1\r\n", "magic"),
        (b"\x16\x03\x01", "magic"),
        (b"\x0d", "magic"),
        (HELLO + HELLO, "second VALIDATE"),
        (HELLO + b"\x13", "unknown opcode 19"),
        (HELLO + b"\xff", "unknown opcode 255"),
    ],
)
def test_what_is_not_the_protocol_is_a_violation(data: bytes, said: str) -> None:
    with pytest.raises(PeerViolation, match=said):
        parse([data])


def test_cw4_requests_before_a_violation_come_out_and_none_after_it() -> None:
    parser = RequestParser()
    ping = encode_request(c10d.Ping(7))
    parser.feed(HELLO + ping + b"\xff" + ping)
    assert parser.next() == c10d.Validate()
    assert parser.next() == c10d.Ping(7)
    for _ in range(3):
        with pytest.raises(PeerViolation, match="opcode 255"):
            parser.next()
        parser.feed(ping)


def test_only_the_magic_number_validates() -> None:
    parser = RequestParser()
    assert parse([HELLO[:4]], parser) == []
    assert not parser.validated
    assert parse([HELLO[4:]], parser) == [c10d.Validate()]
    assert parser.validated


@pytest.mark.parametrize(
    ("before", "limit"),
    [
        (b"\x01", KEY_BYTES_MAX),
        (b"\x01" + encode_bytes(b"k"), VALUE_BYTES_MAX),
        (b"\x02" + encode_bytes(b"k") + encode_bytes(b"e"), VALUE_BYTES_MAX),
        (b"\x05", KEYS_MAX),
        (b"\x06", KEYS_MAX),
        (b"\x0a", KEYS_MAX),
        (b"\x0b", KEYS_MAX),
        (b"\x06" + u64(1), KEY_BYTES_MAX),
        (b"\x0b" + u64(1) + encode_bytes(b"k"), VALUE_BYTES_MAX),
        (b"\x12", KEY_BYTES_MAX),
    ],
)
def test_cw1_a_length_at_the_cap_is_taken_and_one_more_is_not(before: bytes, limit: int) -> None:
    parser = validated()
    assert parse([before + u64(limit)], parser) == []
    assert parser.held < 64  # announced, not sent, so not kept
    for over in (limit + 1, 1 << 32, 1 << 63, (1 << 64) - 1):
        with pytest.raises(PeerViolation, match=str(over)):
            parse([before + u64(over)], validated())


def test_the_largest_of_everything_is_read() -> None:
    big = c10d.Set(b"k" * KEY_BYTES_MAX, b"v" * VALUE_BYTES_MAX)
    many = c10d.Check(tuple(b"%d" % n for n in range(KEYS_MAX)))
    assert parse([encode_request(big), encode_request(many)], validated()) == [big, many]


def test_cw2_a_request_is_bounded_as_a_whole() -> None:
    item = (b"", b"v" * (VALUE_BYTES_MAX - 16))
    assert 8 * (VALUE_BYTES_MAX) == MESSAGE_BYTES_MAX
    full = c10d.MultiSet((item,) * 8)
    assert parse([encode_request(full)], validated()) == [full]
    over = c10d.MultiSet((*full.items, (b"", b"")))
    with pytest.raises(PeerViolation, match="more than"):
        parse([encode_request(over)], validated())


def test_cw2_a_value_that_comes_byte_by_byte_is_kept_once() -> None:
    size = 1 << 17
    parser = validated()
    assert parse([b"\x01" + encode_bytes(b"k") + u64(size)], parser) == []
    tracemalloc.start()
    try:
        for _ in range(size - 1):
            parser.feed(b"v")
            assert parser.next() is None
        assert size <= parser.held + 1 <= size + 64
        assert tracemalloc.get_traced_memory()[1] < 3 * size
    finally:
        tracemalloc.stop()
    assert parse([b"v"], parser) == [c10d.Set(b"k", b"v" * size)]


def test_half_a_request_is_released_at_close() -> None:
    parser = validated()
    parse([b"\x0b" + u64(9) + encode_bytes(b"k") + encode_bytes(b"v" * 1000)], parser)
    assert parser.held > 1000
    parser.close()
    assert len(parser._stream) == 0
    assert inspect.getgeneratorstate(parser._fields) == inspect.GEN_CLOSED


# Noise.


@given(st.binary(max_size=2000), st.booleans())
def test_noise_is_a_violation_or_waits_for_more(data: bytes, hello: bool) -> None:
    parser = RequestParser()
    try:
        parse([HELLO + data if hello else data], parser)
    except PeerViolation:
        pass
    else:
        assert parser.held <= len(data) + len(HELLO)


@given(st.lists(requests, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_damaged_requests_are_read_or_refused_alike_at_every_cut(
    sent: list[c10d.Request], rng: random.Random
) -> None:
    data = bytearray(b"".join(map(encode_request, sent)))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)

    def outcome(pieces: Iterable[bytes]) -> tuple[list[c10d.Request], str]:
        parser, found = validated(), []
        try:
            for piece in pieces:
                parser.feed(piece)
                while (request := parser.next()) is not None:
                    found.append(request)
        except PeerViolation as violation:
            return found, str(violation)
        return found, ""

    assert outcome([bytes(data)]) == outcome(bytes([byte]) for byte in data)


# Replies.


def finish(fields: Fields[R], data: bytes, piece: int) -> R:
    stream = FieldStream()
    need = next(fields)
    at = 0
    while True:
        while (taken := stream.take(need)) is None:
            assert at < len(data), "the reader wants more than was sent"
            stream.feed(data[at : at + piece])
            at += piece
        try:
            need = fields.send(taken)
        except StopIteration as stop:
            assert at >= len(data)
            assert len(stream) == 0
            result: R = stop.value
            return result


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_replies_read_back(piece: int) -> None:
    assert finish(read_u8(), b"\x07", piece) == 7
    assert finish(read_u32(), encode_u32(0xFFFFFFFE), piece) == 0xFFFFFFFE
    assert finish(read_i64(), encode_i64(-2), piece) == -2
    assert finish(read_value(), encode_bytes(b"abc"), piece) == b"abc"
    assert finish(read_value(), encode_bytes(bytearray(b"")), piece) == b""
    pair = encode_bytes(b"a") + encode_bytes(b"")
    assert finish(read_values(2), pair, piece) == [b"a", b""]
    assert finish(read_key_list(), encode_keys([b"k", b"", b"kk"]), piece) == [b"k", b"", b"kk"]


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        (read_value(), u64(MESSAGE_BYTES_MAX + 1)),
        (read_value(3), u64(4)),
        (read_key_list(), encode_i64(-1)),
        (read_key_list(), encode_i64(MESSAGE_BYTES_MAX // 8 + 1)),
        (read_key_list(), encode_i64(1) + u64(KEY_BYTES_MAX + 1)),
        (read_values(2), encode_bytes(b"abc") + u64(MESSAGE_BYTES_MAX - 2)),
    ],
)
def test_an_over_long_reply_is_a_violation(fields: Fields[object], data: bytes) -> None:
    with pytest.raises(PeerViolation):
        finish(fields, data, 1000)
