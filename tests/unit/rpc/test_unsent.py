"""Messages of calls that are given up: taken back, or copied as they are then."""

from __future__ import annotations

import pytest

from holdfast.rpc.link import parts_of, views_of
from holdfast.rpc.messages import Buffer, Kind, Message
from holdfast.rpc.unsent import exposed, take_back, take_back_views

SIZES = (20_000, 0, 30_000)


def message(call: int, body: int) -> tuple[list[Buffer], list[bytearray]]:
    """Return the parts of a message, and the memory of its arguments."""
    memory = [bytearray([call]) * size for size in SIZES]
    parts: list[Buffer] = []
    buffers = [memoryview(each) for each in memory]
    parts_of(Message(Kind.PYTHON_CALL, call, b"b" * body, buffers), parts)
    return exposed(parts), memory


def small(call: int) -> list[Buffer]:
    parts: list[Buffer] = []
    parts_of(Message(Kind.PYTHON_CALL, call, b"small"), parts)
    return parts


def joined(out: list[Buffer]) -> bytes:
    return b"".join(views_of(out))


@pytest.mark.parametrize("body", [0, 100, 4097, 4120, 10_000])
def test_a_message_that_has_not_begun_is_taken_back(body: int) -> None:
    (one, _), (other, _) = message(1, body), message(2, body)
    out = [*small(3), *one, *small(4), *other, *small(5)]
    views = views_of(out)
    without_one = joined([*small(3), *small(4), *other, *small(5)])
    without_both = joined([*small(3), *small(4), *small(5)])
    take_back_views(one, views)
    assert b"".join(views) == without_one
    take_back_views(other, views)
    assert b"".join(views) == without_both
    assert take_back(one, out)
    assert not take_back(one, out)
    assert joined(out) == without_one
    assert take_back(other, out)
    assert joined(out) == without_both


@pytest.mark.parametrize("sent", [1, 30, 15_000, 25_000, 50_020])
def test_of_a_message_that_has_begun_the_rest_is_as_it_was(sent: int) -> None:
    parts, memory = message(1, 10)
    after = small(2)
    whole = joined([*parts, *after])
    views = views_of([*parts, *after])
    left = sent
    while left >= views[0].nbytes:
        left -= views.pop(0).nbytes
    views[0] = views[0][left:]
    take_back_views(parts, views)
    for each in memory:
        each[:] = b"?" * len(each)
    assert b"".join(views) == whole[sent:]


def test_what_has_been_sent_leaves_the_others_alone() -> None:
    (one, _), (other, _) = message(1, 10), message(2, 10)
    views = views_of(other)
    take_back_views(one, views)
    assert views == views_of(other)
