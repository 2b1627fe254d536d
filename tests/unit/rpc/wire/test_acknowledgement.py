"""ACKNOWLEDGE notes as bytes."""

from __future__ import annotations

from holdfast.rpc.wire.acknowledgement import decode_acknowledgement, encode_acknowledgement
from holdfast.rpc.wire.messages import Kind, Message


def test_a_note_names_only_calls_below_its_number() -> None:
    assert encode_acknowledgement(3, [1, 2, 3, 9]) == Message(
        Kind.ACKNOWLEDGE, 3, (1).to_bytes(8) + (2).to_bytes(8)
    )


def test_the_open_calls_are_read_back() -> None:
    assert list(decode_acknowledgement(encode_acknowledgement(9, [1, 5]))) == [1, 5]
    assert list(decode_acknowledgement(encode_acknowledgement(9))) == []


def test_a_torn_number_is_ignored() -> None:
    note = encode_acknowledgement(9, [1, 5])
    assert list(decode_acknowledgement(Message(Kind.ACKNOWLEDGE, 9, note.body[:-1]))) == [1]
