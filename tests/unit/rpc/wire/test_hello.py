"""The first words on a connection."""

from __future__ import annotations

import json
import random

import pytest

from holdfast.errors import PeerViolation
from holdfast.rpc.wire.hello import (
    Purpose,
    WorkerHello,
    decode_hello,
    decode_welcome,
    encode_welcome,
)
from holdfast.rpc.wire.messages import Kind, Message

GREETING = WorkerHello("w0", 3, "abc", "def", Purpose.PIPE)
PLAIN = {"name": "w0", "id": 3, "incarnation": "abc", "target": "def", "purpose": "pipe"}


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_greeting_comes_back_as_it_went(purpose: Purpose) -> None:
    hello = WorkerHello("w0", 3, "abc", "def", purpose)
    assert decode_hello(hello.encode()) == hello


@pytest.mark.parametrize(
    "message",
    [
        Message(Kind.REPLY, 0, GREETING.encode().body),
        Message(Kind.HELLO, 0, GREETING.encode().body, [b""]),
        Message(Kind.HELLO, 0, b" " * 5000),
        Message(Kind.HELLO, 0, b""),
        Message(Kind.HELLO, 0, b"\xff"),
        Message(Kind.HELLO, 0, b"[]"),
        Message(Kind.HELLO, 0, b"[" * 4000),
        Message(Kind.HELLO, 0, b"null"),
        *(
            Message(Kind.HELLO, 0, json.dumps(PLAIN | change).encode())
            for change in (
                {"name": ""},
                {"name": "a b"},
                {"name": 7},
                {"id": "3"},
                {"id": 2**15},
                {"incarnation": 1},
                {"target": None},
                {"purpose": "other"},
                {"more": 1},
            )
        ),
        *(
            Message(
                Kind.HELLO, 0, json.dumps({k: v for k, v in PLAIN.items() if k != left}).encode()
            )
            for left in PLAIN
        ),
    ],
)
def test_anything_else_is_refused(message: Message) -> None:
    with pytest.raises(PeerViolation, match="does not begin with a hello"):
        decode_hello(message)


def test_a_changed_hello_is_read_or_refused() -> None:
    rng = random.Random(1)
    valid = bytes(GREETING.encode().body)
    for _ in range(5000):
        data = bytearray(valid)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            decode_hello(Message(Kind.HELLO, 0, bytes(data)))
        except PeerViolation:
            pass


@pytest.mark.parametrize("refusal", ["", "another one has its name", "größer" * 500])
def test_an_answer_comes_back_as_it_went(refusal: str) -> None:
    assert decode_welcome(encode_welcome(refusal)) == refusal[:1000]


@pytest.mark.parametrize("message", [Message(Kind.REPLY, 0), Message(Kind.WELCOME, 0, b"x" * 5000)])
def test_another_answer_is_refused(message: Message) -> None:
    with pytest.raises(PeerViolation, match="something else"):
        decode_welcome(message)


def test_an_answer_that_is_no_text_is_shown_as_far_as_it_goes() -> None:
    assert "�" in decode_welcome(Message(Kind.WELCOME, 0, b"\xff"))
