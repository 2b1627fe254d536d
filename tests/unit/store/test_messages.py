"""The messages of client and server: exact both ways, and deaf to everything else."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import PeerViolation
from holdfast.ids import SessionId
from holdfast.store.messages import (
    Call,
    CallFailure,
    Cancel,
    Changed,
    FromClient,
    FromServer,
    Hello,
    Members,
    Parting,
    Ping,
    Pong,
    Reply,
    WatchClose,
    WatchOpen,
    WatchSnapshot,
    Welcome,
    Why,
    decode_from_client,
    decode_from_server,
    encode,
)
from holdfast.store.ops import KEY_BYTES_MAX, Get
from tests.unit.store.wire_examples import (
    ANY_OP,
    CHANGES,
    KEYS,
    MANY_ENTRIES,
    MANY_KEYS,
    U64,
    mutated,
)

U32 = st.integers(0, 2**32 - 1)
CLIENTS: dict[type[FromClient], st.SearchStrategy[Any]] = {
    Hello: st.builds(Hello, U64.map(SessionId), U64, U64),
    Call: st.builds(Call, U64, U64, ANY_OP),
    Cancel: st.builds(Cancel, U64),
    WatchOpen: st.builds(WatchOpen, U32, st.booleans(), KEYS),
    WatchClose: st.builds(WatchClose, U32),
    Ping: st.builds(Ping),
    Parting: st.builds(Parting),
}
SERVERS: dict[type[FromServer], st.SearchStrategy[Any]] = {
    Welcome: st.builds(Welcome, U64, st.booleans()),
    Reply: st.builds(Reply, U64, st.binary(max_size=20)),
    CallFailure: st.builds(CallFailure, U64, st.sampled_from(Why), KEYS | st.just(""), MANY_KEYS),
    WatchSnapshot: st.builds(WatchSnapshot, U32, st.booleans(), U64, MANY_ENTRIES),
    Changed: st.builds(Changed, U32, CHANGES),
    Pong: st.builds(Pong),
    Members: st.builds(Members, st.booleans(), KEYS | st.just(""), MANY_KEYS),
}
Decode = Callable[[bytes], object]
ALL: dict[Any, tuple[Decode, st.SearchStrategy[Any]]] = {
    **{kind: (decode_from_client, messages) for kind, messages in CLIENTS.items()},
    **{kind: (decode_from_server, messages) for kind, messages in SERVERS.items()},
}
DECODERS: list[Decode] = [decode_from_client, decode_from_server]


def test_every_message_has_an_example() -> None:
    assert set(CLIENTS) == set(get_args(FromClient))
    assert set(SERVERS) == set(get_args(FromServer))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_messages_come_back_as_they_were(kind: Any, data: st.DataObject) -> None:
    decode, messages = ALL[kind]
    message = data.draw(messages)
    back = decode(encode(message))
    assert back == message
    assert type(back) is kind


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_truncation_and_every_extra_byte_is_refused(kind: Any, data: st.DataObject) -> None:
    decode, messages = ALL[kind]
    whole = encode(data.draw(messages))
    # A Reply's result is opaque here; it is judged with the operation that it answers.
    for size in range(9 if kind is Reply else len(whole)):
        with pytest.raises(PeerViolation):
            decode(whole[:size])
    if kind is not Reply:
        with pytest.raises(PeerViolation):
            decode(whole + b"\0")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_mutated_bytes_are_refused_or_are_another_valid_message(
    kind: Any, data: st.DataObject
) -> None:
    decode, messages = ALL[kind]
    changed = data.draw(mutated(encode(data.draw(messages))))
    try:
        found: Any = decode(changed)
    except PeerViolation:
        return
    assert encode(found) == changed


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=60))
def test_random_bytes_raise_nothing_else(decode: Decode, data: bytes) -> None:
    try:
        decode(data)
    except PeerViolation:
        pass


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("kind", [0, 8, 15, 16, 24, 255])
def test_unknown_kinds_are_refused(decode: Decode, kind: int) -> None:
    with pytest.raises(PeerViolation, match=f"message kind {kind} is unknown"):
        decode(bytes((kind,)) + bytes(40))


def test_each_side_refuses_what_only_it_may_say() -> None:
    with pytest.raises(PeerViolation):
        decode_from_client(encode(Welcome(1, False)))
    with pytest.raises(PeerViolation):
        decode_from_server(encode(Ping()))
    with pytest.raises(PeerViolation):
        decode_from_client(encode(Reply(1, b"")))
    with pytest.raises(PeerViolation):
        decode_from_server(encode(Call(1, 1, Get("k"))))


def test_unknown_reasons_of_failure_are_refused() -> None:
    data = bytearray(encode(CallFailure(1, Why.USAGE, "text")))
    data[9] = max(Why) + 1
    with pytest.raises(PeerViolation, match="failure kind 5 is unknown"):
        decode_from_server(bytes(data))


def test_a_failures_text_must_be_utf8() -> None:
    with pytest.raises(PeerViolation, match="not UTF-8"):
        decode_from_server(encode(CallFailure(1, Why.USAGE, "a")).replace(b"a", b"\xff"))


def test_watches_within_bounds_are_taken_and_others_refused() -> None:
    for watch in (WatchOpen(1, True, ""), WatchOpen(1, False, "k" * KEY_BYTES_MAX)):
        assert decode_from_client(encode(watch)) == watch
    for watch in (
        WatchOpen(1, False, ""),
        WatchOpen(1, False, "k" * (KEY_BYTES_MAX + 1)),
        WatchOpen(1, True, "k" * (KEY_BYTES_MAX + 1)),
    ):
        with pytest.raises(PeerViolation, match="out of bounds"):
            decode_from_client(encode(watch))


LYING_COUNT = struct.pack(">I", 2**32 - 1)


@pytest.mark.parametrize(
    "head",
    [encode(CallFailure(1, Why.CANCELLED, ""))[:-4], encode(WatchSnapshot(1, True, 1, ()))[:-4]],
    ids=["failure", "snapshot"],
)
def test_a_lying_count_costs_no_memory(head: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PeerViolation, match="more than it may hold"):
            decode_from_server(head + LYING_COUNT + bytes(1000))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
