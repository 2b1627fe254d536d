"""Messages as parts that are sent together."""

from __future__ import annotations

import pytest

from holdfast.rpc.wire.codec import encode_head
from holdfast.rpc.wire.messages import Buffer, Kind, Message
from holdfast.rpc.wire.parts import JOIN_BYTES, parts_of, take_off, views_of


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


@pytest.mark.parametrize("sent", range(8))
def test_what_has_been_sent_is_taken_off(sent: int) -> None:
    views = [memoryview(part) for part in (b"abc", b"d", b"efg")]
    take_off(views, sent)
    assert b"".join(views) == b"abcdefg"[sent:]
    assert all(view.nbytes for view in views)
