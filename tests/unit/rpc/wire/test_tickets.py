"""References as they travel."""

from __future__ import annotations

from holdfast.rpc.wire.tickets import (
    CREATION_BYTES,
    Number,
    Ticket,
    decode_creation,
    encode_creation,
)


def test_the_head_of_a_creation_names_the_reference_and_the_fork() -> None:
    head = encode_creation(Ticket(Number("me", 3), "you", Number("me", 1 << 63), "me"))
    assert len(head) == CREATION_BYTES
    assert decode_creation(head + b"what follows") == (3, 1 << 63)
