"""What commands ask and agents answer, as bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.messages import (
    EVENTS_WAIT_MAX_S,
    RANKS_MAX,
    REPLY_BYTES_MAX,
    AskEvents,
    AskStacks,
    AskStatus,
    AskStop,
    Request,
    decode_reply,
    decode_request,
    encode_refusal,
    encode_reply,
    encode_request,
)
from holdfast.errors import PeerViolation, Refused

REQUESTS: list[Request] = [
    AskStatus(),
    AskStop(),
    AskStop(2.5),
    AskEvents(),
    AskEvents(7, EVENTS_WAIT_MAX_S),
    AskStacks(),
    AskStacks(tuple(range(RANKS_MAX))),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: str(one)[:40])
def test_a_request_survives(request_: Request) -> None:
    assert decode_request(encode_request(request_)) == request_


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([], "request: must be an object"),
        ({}, "request of version None: this agent speaks 1"),
        ({"version": 2, "ask": "status"}, "use the holdfast that started the job"),
        ({"version": 1, "ask": "dance"}, "ask 'dance': this agent cannot answer it"),
        ({"version": 1, "ask": "stop", "grace_s": -1}, "grace_s -1: must be 0 to 1e"),
        ({"version": 1, "ask": "stop", "grace_s": "5"}, "grace_s '5': must be"),
        ({"version": 1, "ask": "stop", "grace_s": True}, "grace_s True: must be"),
        ({"version": 1, "ask": "events", "after": 0, "wait_s": 31}, "wait_s 31: must be 0 to 30"),
        ({"version": 1, "ask": "events", "after": -1, "wait_s": 0}, "after -1: must be 0, 1, 2"),
        ({"version": 1, "ask": "stacks", "ranks": 3}, "ranks 3: must be a list of 4096 at most"),
        ({"version": 1, "ask": "stacks", "ranks": [0] * (RANKS_MAX + 1)}, "must be a list of"),
        ({"version": 1, "ask": "stacks", "ranks": [-1]}, "ranks -1: must be 0, 1, 2"),
        ({"version": 1, "ask": "events", "after": 2**53, "wait_s": 0}, "after 9007"),
    ],
)
def test_a_request_that_does_not_fit_names_the_field(fields: Any, why: str) -> None:
    """CM-1."""
    with pytest.raises(PeerViolation) as caught:
        decode_request(json.dumps(fields).encode())
    assert why in str(caught.value)


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    """CM-1."""
    for decode in (decode_request, decode_reply):
        try:
            decode(data)
        except (PeerViolation, Refused):
            pass


def test_deep_nesting_is_refused() -> None:
    """CM-1."""
    with pytest.raises(PeerViolation, match="not JSON"):
        decode_request(b"[" * 60_000)


def test_an_answer_survives_and_a_refusal_is_raised() -> None:
    assert decode_reply(encode_reply({"state": "running"})) == {"state": "running"}
    with pytest.raises(Refused, match="not today"):
        decode_reply(encode_refusal("not today"))
    with pytest.raises(PeerViolation, match="neither an answer nor a refusal"):
        decode_reply(b'{"answer": 3}')


def test_an_answer_that_is_too_large_is_refused() -> None:
    """CM-2."""
    empty = len(encode_reply({"x": ""}))
    assert decode_reply(encode_reply({"x": "y" * (REPLY_BYTES_MAX - empty)}))["x"][0] == "y"
    with pytest.raises(Refused, match=f"at most {REPLY_BYTES_MAX} are allowed"):
        decode_reply(encode_reply({"x": "y" * (REPLY_BYTES_MAX - empty + 1)}))
