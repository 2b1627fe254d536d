"""Frames: any split gives the same frames, and no announced length costs memory."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import PeerViolation, UsageError
from holdfast.net.frames import FRAME_BYTES_MAX, FrameDecoder, check_frame, encode_frame

HEADER = 4
CAP = 64


def announce(length: int) -> bytes:
    return struct.pack(">I", length)


def test_the_layout_is_a_length_in_network_order_and_the_payload() -> None:
    assert encode_frame(b"abc") == b"\0\0\0\3abc"
    assert encode_frame(b"") == b"\0\0\0\0"


@pytest.mark.parametrize("size", [CAP - 1, CAP])
def test_a_payload_up_to_the_cap_passes(size: int) -> None:
    frame = encode_frame(bytes(size), CAP)
    assert FrameDecoder(CAP).feed(frame) == [bytes(size)]


def test_a_payload_over_the_cap_is_refused_on_both_sides() -> None:
    with pytest.raises(UsageError, match="message of 65 bytes: at most 64 are allowed"):
        encode_frame(bytes(CAP + 1), CAP)
    with pytest.raises(UsageError):
        check_frame(bytes(CAP + 1), CAP)
    with pytest.raises(PeerViolation, match="65 bytes was announced, the cap is 64"):
        FrameDecoder(CAP).feed(announce(CAP + 1))


def test_every_split_of_a_stream_gives_the_same_frames() -> None:
    payloads = [b"", b"a", b"bc" * 9, b"", bytes(CAP)]
    stream = b"".join(encode_frame(payload, CAP) for payload in payloads)
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            decoder = FrameDecoder(CAP)
            frames = [
                frame
                for part in (stream[:first], stream[first:second], stream[second:])
                for frame in decoder.feed(part)
            ]
            assert frames == payloads
            assert decoder.pending() == 0


@given(st.lists(st.binary(max_size=CAP), max_size=8), st.data())
def test_frames_survive_any_cutting(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(payload, CAP) for payload in payloads)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20).map(sorted))
    decoder = FrameDecoder(CAP)
    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames += decoder.feed(stream[start:end])
        assert decoder.pending() < HEADER + CAP
    assert frames == payloads
    assert decoder.pending() == 0


@given(st.lists(st.binary(max_size=3 * CAP), max_size=12))
def test_any_bytes_give_frames_or_a_violation_and_hold_at_most_one_frame(
    parts: list[bytes],
) -> None:
    decoder = FrameDecoder(CAP)
    try:
        for part in parts:
            assert all(len(frame) <= CAP for frame in decoder.feed(part))
            assert decoder.pending() < HEADER + CAP
    except PeerViolation:
        pass


def test_a_frame_is_not_given_before_its_last_byte() -> None:
    decoder = FrameDecoder(CAP)
    frame = encode_frame(b"payload", CAP)
    for number in range(len(frame) - 1):
        assert decoder.feed(frame[number : number + 1]) == []
        assert decoder.pending() == number + 1
    assert decoder.feed(frame[-1:]) == [b"payload"]


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX + 1, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("split", [0, 1, 3])
def test_a_length_over_the_cap_is_refused_before_anything_is_allocated(
    length: int, split: int
) -> None:
    decoder = FrameDecoder()
    header = announce(length)
    tracemalloc.start()
    try:
        decoder.feed(header[:split])
        with pytest.raises(PeerViolation):
            decoder.feed(header[split:] + b"x" * 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


def test_an_announced_length_costs_only_what_arrives() -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        assert decoder.feed(announce(FRAME_BYTES_MAX)) == []
        assert decoder.feed(bytes(1000)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024
    assert decoder.pending() == HEADER + 1000
