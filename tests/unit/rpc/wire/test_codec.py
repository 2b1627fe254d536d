"""The bytes of messages: what comes back is what went in, and nonsense is refused."""

from __future__ import annotations

import random
import struct
from collections import deque

import pytest

from holdfast.errors import PeerViolation, UsageError
from holdfast.rpc.wire.codec import (
    AS_BYTEARRAY,
    AS_BYTES,
    BIG_BYTES,
    BUDGET_MAX_MS,
    BUFFERS_MAX,
    ELSEWHERE,
    HEADER,
    HEADER_BYTES,
    JOIN_BYTES,
    MESSAGE_BYTES_MAX,
    SIZE,
    Head,
    decode_head,
    decode_lengths,
    decode_small,
    encode_head,
    encode_small,
    parts_of,
    take_off,
    views_of,
)
from holdfast.rpc.wire.messages import Buffer, Kind, Message

FUZZED = 200_000


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("kind", list(Kind))
def test_a_head_comes_back_as_it_went(kind: Kind, once: bool) -> None:
    message = Message(kind, 2**64 - 1, b"body", budget_ms=7, once=once)
    encoded = encode_head(message)
    assert len(encoded) == HEADER_BYTES
    assert decode_head(encoded) == Head(kind, once, 0, 7, 2**64 - 1, 4)
    assert decode_head(b"before" + encoded, 6).call == 2**64 - 1


@pytest.mark.parametrize("once", [False, True])
def test_a_message_with_references_says_so(once: bool) -> None:
    message = Message(Kind.REPLY, 1, b"body", once=once, given=["a ticket"])
    for buffers in ([], [b"abc"]):
        message.buffers = buffers
        head = decode_head(encode_head(message))
        assert (head.has_references, head.once) == (True, once)
    message.given = ()
    assert not decode_head(encode_head(message)).has_references


def test_a_small_message_is_encoded_whole() -> None:
    most = Message(Kind.REPLY, 1, bytes(JOIN_BYTES))
    assert encode_small(most) == encode_head(most) + bytes(JOIN_BYTES)
    assert encode_small(Message(Kind.REPLY, 1, bytes(JOIN_BYTES + 1))) is None
    assert encode_small(Message(Kind.REPLY, 1, b"", [b""])) is None


def small(data: bytes, start: int, end: int) -> tuple[list[Message], int]:
    come: deque[Message] = deque()
    after = decode_small(bytearray(data), start, end, come)
    return list(come), after


@pytest.mark.parametrize("once", [False, True])
def test_small_messages_are_read_at_once_as_far_as_they_are_whole(once: bool) -> None:
    first = Message(Kind.PYTHON_CALL, 3, b"body", budget_ms=7, once=once)
    second = Message(Kind.FAILURE, 4, b"")
    data = b"before" + encode_head(first) + b"body" + encode_head(second) + b"after"
    between = 6 + HEADER_BYTES + 4
    whole = between + HEADER_BYTES
    for end in (whole, len(data)):
        assert small(data, 6, end) == ([first, second], whole)
    for end in (between, between + 1, whole - 1):
        assert small(data, 6, end) == ([first], between)
    for end in (6, 6 + HEADER_BYTES - 1, between - 1):
        assert small(data, 6, end) == ([], 6)


@pytest.mark.parametrize(
    "head", [(1, 0, 1, 0, 0, 0), (1, 2, 0, 0, 0, 0), (255, 0, 0, 0, 0, 0), (1, 0, 0, 0, 0, 2**63)]
)
def test_large_and_malformed_messages_are_not_decoded_by_the_fast_path(
    head: tuple[int, ...],
) -> None:
    data = HEADER.pack(*head) + bytes(16)
    assert small(data, 0, len(data)) == ([], 0)


def test_a_note_between_connections_is_not_decoded_by_the_fast_path() -> None:
    for kind in (Kind.OFFER, Kind.TAKEN):
        data = encode_head(Message(kind, 1))
        assert small(data, 0, len(data)) == ([], 0)


def test_the_lengths_of_buffers_are_in_bytes() -> None:
    wide = memoryview(bytearray(16)).cast("Q")
    message = Message(Kind.REPLY, 1, b"ab", [b"abc", bytearray(5), wide, b""])
    encoded = encode_head(message)
    head = decode_head(encoded)
    assert head.buffers == 4
    lengths = decode_lengths(encoded[HEADER_BYTES:], head)
    assert lengths == (3 | AS_BYTES, 5 | AS_BYTEARRAY, 16, AS_BYTES)
    assert [length & SIZE for length in lengths] == [3, 5, 16, 0]


def test_large_buffers_may_be_elsewhere() -> None:
    buffers = [memoryview(bytes(size)) for size in (3, 100, 99, 101)]
    message = Message(Kind.REPLY, 1, b"ab", buffers)
    encoded = encode_head(message, elsewhere_from=100)
    lengths = decode_lengths(encoded[HEADER_BYTES:], decode_head(encoded))
    assert lengths == (3, 100 | ELSEWHERE, 99, 101 | ELSEWHERE)


def test_a_budget_beyond_the_largest_is_cut_down() -> None:
    assert decode_head(encode_head(Message(Kind.REPLY, 1, budget_ms=2**50))).budget_ms == (
        BUDGET_MAX_MS
    )


def test_too_many_buffers_are_refused_before_they_are_sent() -> None:
    most: list[bytes | bytearray | memoryview] = [b""] * BUFFERS_MAX
    assert decode_head(encode_head(Message(Kind.REPLY, 1, b"", most))).buffers == BUFFERS_MAX
    for more in (1, 2**16):  # the second would not even fit into its field
        with pytest.raises(UsageError, match="buffers in one message"):
            encode_head(Message(Kind.REPLY, 1, b"", most + [b""] * more))


def test_a_message_that_is_too_large_is_refused_before_it_is_sent() -> None:
    page = bytearray(1 << 26)
    many: list[bytes | bytearray | memoryview] = [page] * (MESSAGE_BYTES_MAX // len(page))
    assert encode_head(Message(Kind.REPLY, 1, b"", many))
    with pytest.raises(UsageError, match="at most 1099511627776"):
        encode_head(Message(Kind.REPLY, 1, b"!", many))


@pytest.mark.parametrize(
    "fields",
    [
        (0, 0, 0, 0, 1, 0),
        (63, 0, 0, 0, 1, 0),
        (255, 0, 0, 0, 1, 0),
        (1, 4, 0, 0, 1, 0),
        (1, 0, BUFFERS_MAX + 1, 0, 1, 0),
        (1, 0, 0, 0, 1, MESSAGE_BYTES_MAX + 1),
        (1, 0, 0, 0, 1, 2**63),
        (1, 0, 0, 0, 1, 2**64 - 1),
    ],
)
def test_a_head_out_of_bounds_is_refused(fields: tuple[int, ...]) -> None:
    with pytest.raises(PeerViolation, match="out of bounds"):
        decode_head(HEADER.pack(*fields))


@pytest.mark.parametrize("lengths", [(2**62 - 1,), (2**40, 1), (2**39, 2**39, 1), (2**64 - 1,) * 9])
def test_lengths_out_of_bounds_are_refused_before_anything_is_allocated(
    lengths: tuple[int, ...],
) -> None:
    head = Head(Kind.REPLY, False, len(lengths), 0, 1, 0)
    with pytest.raises(PeerViolation, match="more than"):
        decode_lengths(struct.pack(f"<{len(lengths)}Q", *lengths), head)


def test_a_buffer_of_two_kinds_is_refused() -> None:
    head = Head(Kind.REPLY, False, 2, 0, 1, 0)
    with pytest.raises(PeerViolation, match="as bytes and as a bytearray"):
        decode_lengths(struct.pack("<2Q", AS_BYTES, AS_BYTES | AS_BYTEARRAY), head)


def test_random_bytes_are_read_or_refused() -> None:
    rng = random.Random(20)
    valid = encode_head(Message(Kind.PYTHON_CALL, 9, b"abc", [b"12", b""], budget_ms=5, once=True))
    read = refused = 0
    for number in range(FUZZED):
        if number % 2:
            data = bytearray(valid)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        else:
            data = bytearray(rng.randbytes(40))
        try:
            head = decode_head(data)
            assert head.body_bytes <= MESSAGE_BYTES_MAX
            assert head.buffers <= BUFFERS_MAX
            if 8 * head.buffers <= len(data) - HEADER_BYTES:
                lengths = decode_lengths(data[HEADER_BYTES:], head)
                total = sum(length & SIZE for length in lengths)
                assert head.body_bytes + total <= MESSAGE_BYTES_MAX
            read += 1
        except PeerViolation:
            refused += 1
    assert read > FUZZED // 100
    assert refused > FUZZED // 10


# Parts.


def parts(*messages: Message) -> list[Buffer]:
    found: list[Buffer] = []
    for message in messages:
        parts_of(message, found)
    return found


def test_a_small_body_is_joined_with_its_header_and_a_large_one_is_not_copied() -> None:
    small, large = Message(Kind.REPLY, 1, b"x"), Message(Kind.REPLY, 2, bytes(JOIN_BYTES + 1))
    assert parts(small) == [encode_head(small) + b"x"]
    head, body = parts(large)
    assert head == encode_head(large)
    assert body is large.body


class AllLarge:
    def places_of(self, message: Message) -> list[Buffer]:
        return [b"place"] * len(message.buffers)


def test_places_are_sent_instead_of_buffers_that_the_peer_can_read() -> None:
    message, found = Message(Kind.REPLY, 1, b"body", [bytes(BIG_BYTES)]), list[Buffer]()
    parts_of(message, found, AllLarge())
    assert found == [encode_head(message, BIG_BYTES) + b"body", b"place"]


def test_buffers_are_sent_from_where_they_lie() -> None:
    buffer = bytearray(b"data")
    message = Message(Kind.REPLY, 1, b"body", [buffer])
    head, last = parts(message)
    assert bytes(head).endswith(b"body")
    assert last is buffer


def test_small_parts_become_one_view_and_empty_ones_none() -> None:
    large = bytearray(JOIN_BYTES * 2)
    views = views_of([b"a", b"b", large, b"", b"c", memoryview(b"")])
    assert [bytes(view) for view in views] == [b"ab", bytes(large), b"c"]
    assert views[1].obj is large
    assert [view.nbytes for view in views_of([large, large, b"c"])] == [len(large), len(large), 1]


@pytest.mark.parametrize("sent", range(8))
def test_sent_bytes_are_removed(sent: int) -> None:
    views = [memoryview(part) for part in (b"abc", b"d", b"efg")]
    take_off(views, sent)
    assert b"".join(views) == b"abcdefg"[sent:]
    assert all(view.nbytes for view in views)
