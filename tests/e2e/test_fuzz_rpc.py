"""Workers that speak nonsense: what reads them refuses it or waits, and the others are served."""

from __future__ import annotations

import json
import pickle
import random
import socket
from collections import Counter
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.errors import PeerViolation
from holdfast.net.address import Address
from holdfast.net.tcp import shake_hands
from holdfast.rpc.wire.codec import HEADER, encode_head
from holdfast.rpc.wire.connection import Connection, ConnectionEnded
from holdfast.rpc.wire.hello import Purpose, WorkerHello, decode_hello, decode_welcome
from holdfast.rpc.wire.messages import Buffer, Kind, Message
from tests.e2e.hostile import MIB, resident_bytes
from tests.unit.rpc.world import KEY, agents

STREAMS, GREETINGS, SESSIONS = 200_000, 50_000, 500
SOON = 30.0
KINDS = list(Kind)


def some_message(rng: random.Random) -> Message:
    buffers: list[Buffer] = [
        rng.randbytes(rng.choice((0, 1, 9))) for _ in range(rng.choice((0, 0, 1, 3)))
    ]
    body = rng.randbytes(rng.choice((0, 1, 32, 40)))
    return Message(rng.choice(KINDS), rng.getrandbits(64), body, buffers, once=rng.random() < 0.5)


def encode(message: Message) -> bytes:
    return b"".join([encode_head(message), message.body, *message.buffers])


def some_stream(rng: random.Random) -> bytes:
    """Messages that are right, nearly right, cut, mixed up, or none at all."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(120))
    data = bytearray(b"".join(encode(some_message(rng)) for _ in range(rng.randint(1, 3))))
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at:]
            case _:
                data[at : at + 8] = rng.choice((b"\0", b"\xff", b"\x80")) * 8
        if not data:
            break
    return bytes(data)


def test_whatever_comes_on_a_link_is_a_message_or_a_violation_or_waited_for() -> None:
    rng = random.Random(6)
    seen: Counter[str] = Counter()
    before = 0
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for number in range(STREAMS):
            if number == STREAMS // 10:
                before = resident_bytes()
            link = Connection(ours, some_stream(rng))
            try:
                while (message := link.here()) is not None:
                    assert message.kind in KINDS
                    seen["messages"] += 1
                seen["waited for"] += 1
            except (PeerViolation, ConnectionEnded):
                seen["refused"] += 1
        assert resident_bytes() - before < 32 * MIB
    assert min(seen[what] for what in ("messages", "waited for", "refused")) > STREAMS // 20


GREETING = WorkerHello("w1", 1, "rogue", "me", Purpose.PIPE)
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1e400,
    "",
    "\0",
    "direct",
    "x" * 200,
    [],
    {},
    [[]],
    {"name": "w1"},
]


def some_greeting(rng: random.Random) -> Message:
    plain = json.loads(bytes(GREETING.encode().body))
    for _ in range(rng.choice((0, 1, 2))):
        match rng.randrange(3):
            case 0:
                plain[rng.choice([*plain, "more"])] = rng.choice(ODD)
            case 1:
                plain.pop(rng.choice(list(plain)), None)
            case _:
                plain = rng.choice([plain, plain, plain, *ODD])
        if not isinstance(plain, dict) or not plain:
            break
    body = bytearray(json.dumps(plain).encode())
    for _ in range(rng.choice((0, 0, 1, 3))):
        body[rng.randrange(len(body))] = rng.randrange(256)
    if rng.random() < 0.01:
        body = bytearray(b"[" * rng.choice((10, 4000, 5000)))
    kind = Kind.HELLO if rng.random() < 0.9 else rng.choice(KINDS)
    return Message(kind, rng.getrandbits(64), bytes(body), [b""] * rng.choice((0, 0, 0, 1)))


def test_whatever_greets_us_is_a_greeting_or_a_violation() -> None:
    rng = random.Random(7)
    seen: Counter[str] = Counter()
    for _ in range(GREETINGS):
        message = some_greeting(rng)
        try:
            greeting = decode_hello(message)
            assert {type(text) for text in (greeting.name, greeting.incarnation)} == {str}
            assert isinstance(greeting.purpose, Purpose)
            seen["greetings"] += 1
        except PeerViolation:
            seen["refused"] += 1
        try:
            assert isinstance(decode_welcome(message), str)
        except PeerViolation:
            seen["no answers"] += 1
    assert min(seen[what] for what in ("greetings", "refused", "no answers")) > GREETINGS // 20


# With the secret, over real sockets.

CALLS = [
    pickle.dumps(value)
    for value in ((divmod, (7, 2), None), (divmod, (), None), None, (), (1, 2, 3), "x" * 50)
]


def some_session(rng: random.Random) -> bytes:
    """Messages whose bodies are harmless, and whose heads are not always right."""
    data = bytearray()
    for _ in range(rng.randint(1, 6)):
        message = some_message(rng)
        message.body, message.buffers = rng.choice(CALLS), []
        part = bytearray(encode(message))
        if rng.random() < 0.3:
            part[rng.randrange(HEADER.size)] = rng.randrange(256)
        data += part
    return bytes(data)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_worker_that_speaks_nonsense_loses_its_own_connection_only(purpose: Purpose) -> None:
    rng = random.Random(8)
    with agents(None, None) as (victim, friend):
        assert victim.contact is not None
        assert friend.contact is not None
        before = resident_bytes()
        for number in range(SESSIONS):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(SOON)
                sock.connect(victim.contact.unix)
                key = KEY.meant_for(victim.contact.incarnation)
                rest = shake_hands(sock, key, Address("unix", 0), Deadline.after(SOON))
                link = Connection(sock, rest)
                me, there = friend.contact.incarnation, victim.contact.incarnation
                link.send(WorkerHello("w1", 1, me, there, purpose).encode())
                assert decode_welcome(link.receive()) == ""
                sock.sendall(some_session(rng))
                if number % 2:
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(4096):
                        pass
            if number % 50 == 0:
                assert friend.call("w0", divmod, (7, 2)) == (3, 1)
                assert friend.call_async("w0", divmod, (7, 2)).wait(SOON) == (3, 1)
        assert resident_bytes() - before < 32 * MIB
        assert friend.call("w0", divmod, (7, 2)) == (3, 1)
