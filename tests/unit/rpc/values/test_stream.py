"""Pickle streams: what lies outside, and that body and buffers are as good as the whole pickle."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from holdfast.rpc.values import stream as streams
from holdfast.rpc.values.stream import BYTES_OUTSIDE, OUTSIDE_BYTES, PickleStream
from holdfast.rpc.wire.messages import Buffer

LARGE = bytes(range(256)) * (BYTES_OUTSIDE // 256)


def written(value: Any) -> tuple[bytes, list[Buffer]]:
    stream = PickleStream()
    pickle.Pickler(stream, 5, buffer_callback=stream.keep).dump(value)
    return stream.body(), stream.buffers()


@pytest.mark.parametrize(
    "value",
    [
        None,
        LARGE,
        [LARGE, "between", LARGE + b"!"],
        {"deep": ({"er": [LARGE]},), "more": bytearray(LARGE)},
        "text" * BYTES_OUTSIDE,
        "\ud800" * BYTES_OUTSIDE,
        ["é" * BYTES_OUTSIDE, LARGE, "é" * BYTES_OUTSIDE],
        LARGE[1:],
        [LARGE[: 1 << 17]] * 3,
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_pz1_reading_body_and_buffers_gives_the_value(value: Any) -> None:
    body, buffers = written(value)
    came = pickle.loads(body, buffers=buffers)
    assert came == value
    assert type(came) is type(value)


def test_bytes_lie_outside_as_they_are() -> None:
    body, buffers = written([LARGE, LARGE[1:], LARGE])
    assert len(buffers) == 1
    assert buffers[0] is LARGE
    first, _, last = pickle.loads(body, buffers=buffers)
    assert first is last is LARGE


def test_pz2_a_bytearray_lies_outside_as_a_copy() -> None:
    value = bytearray(LARGE)
    body, (buffer,) = written([value])
    assert type(buffer) is bytearray
    value.extend(b"more")  # nothing keeps it from being resized
    assert pickle.loads(body, buffers=[buffer]) == [LARGE]


def test_pz1_arrays_and_bytes_keep_their_order() -> None:
    array = np.arange(OUTSIDE_BYTES, dtype="u1")
    value: list[Any] = [array, LARGE, array[:-1], bytearray(LARGE), array + 1]
    body, buffers = written(value)
    assert [type(buffer) for buffer in buffers] == [memoryview, bytes, bytearray, memoryview]
    came = pickle.loads(body, buffers=buffers)
    assert all(np.array_equal(one, other) for one, other in zip(came, value, strict=True))


def test_more_than_a_message_may_have_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BUFFERS_MAX", 1)
    value: list[Any] = [LARGE, LARGE + b"!", np.arange(OUTSIDE_BYTES, dtype="u1")]
    body, buffers = written(value)
    assert len(buffers) == 1
    came = pickle.loads(body, buffers=buffers)
    assert all(np.array_equal(one, other) for one, other in zip(came, value, strict=True))


def test_pz1_bytes_that_were_not_announced_stay_inside_the_pickle() -> None:
    befores: list[list[bytes]] = [[], [b"no length"], [pickle.BINBYTES + b"1234"]]
    for before in befores:
        stream = PickleStream()
        for chunk in [*before, LARGE]:
            stream.write(chunk)
        stream.write(memoryview(LARGE))
        assert stream.body() == b"".join(before) + LARGE + LARGE
        assert stream.buffers() == []


def test_a_buffer_that_is_not_in_one_piece_stays_inside() -> None:
    stream = PickleStream()
    spread: Any = np.zeros((OUTSIDE_BYTES, 2), dtype="u1")[:, 0]
    assert stream.keep(pickle.PickleBuffer(spread))
    assert not stream.keep(pickle.PickleBuffer(spread.copy()))
