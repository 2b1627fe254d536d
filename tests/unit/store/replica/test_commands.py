"""Batches of commands come back as they were; what is none is refused."""

from __future__ import annotations

import pytest

from holdfast.errors import PeerViolation
from holdfast.ids import SessionId
from holdfast.store.messages import Call, Hello, Ping, encode
from holdfast.store.ops import Set
from holdfast.store.replica.commands import (
    Batch,
    ClientDied,
    ClientWrote,
    Command,
    LeaderBegan,
    MemberAnnounced,
    SessionForgotten,
    SessionOpened,
    decode_batch,
    encode_batch,
)

ONE = SessionId(7)
CALL = Call(3, 2, Set("k", b"v"))
COMMANDS: tuple[Command, ...] = (
    SessionOpened(Hello(ONE, 5, 1), 9),
    ClientWrote(ONE, encode(CALL)),
    ClientDied(ONE),
    SessionForgotten(ONE),
    LeaderBegan(),
    MemberAnnounced(8, "host:1", 9),
)


def test_a_batch_comes_back_as_it_was() -> None:
    assert decode_batch(encode_batch(1.5, COMMANDS)) == Batch(1.5, COMMANDS)
    assert decode_batch(encode_batch(2.5, ())) == Batch(2.5, ())


def test_a_write_holds_its_call_and_nothing_else() -> None:
    assert ClientWrote(ONE, encode(CALL)).call == CALL
    with pytest.raises(PeerViolation, match="no call"):
        _ = ClientWrote(ONE, encode(Ping())).call


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 8 + b"\0\0\0\1\x09", b"\0" * 8 + b"\0\0\0\2\x05\x05", b"\0" * 8 + b"\0\0\0\x09"],
)
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    with pytest.raises(PeerViolation):
        decode_batch(data)
