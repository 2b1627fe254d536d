"""The first messages of a connection: the opener's name, the intended callee, and the purpose.

They follow the handshake, so they come only from peers that hold the job's secret.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from holdfast.errors import HoldfastError, PeerViolation
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["Purpose", "WorkerHello", "decode_hello", "decode_welcome", "encode_welcome"]

_BYTES_MAX = 4096


class Purpose(StrEnum):
    """What a connection is for."""

    DIRECT = "direct"
    """One call after the other: the caller waits for each reply."""
    PIPE = "pipe"
    """Many calls at once."""


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """The worker that opens a connection, and the incarnation that it wants to reach."""

    name: str
    id: int
    incarnation: str
    target: str
    purpose: Purpose

    def encode(self) -> Message:
        """Return the message."""
        return Message(Kind.HELLO, 0, json.dumps(asdict(self)).encode())


def decode_hello(message: Message) -> WorkerHello:
    """Read a hello; PeerViolation if the message is not one."""
    try:
        if message.kind is not Kind.HELLO or len(message.body) > _BYTES_MAX or message.buffers:
            raise ValueError
        plain = json.loads(bytes(message.body))
        WorkerInfo(plain["name"], plain["id"])
        hello = WorkerHello(**plain | {"purpose": Purpose(plain["purpose"])})
        if not isinstance(hello.incarnation, str) or not isinstance(hello.target, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError, HoldfastError):
        raise PeerViolation("a connection does not begin with a hello") from None
    return hello


def encode_welcome(refusal: str) -> Message:
    """Return the reply to a hello: the reason of a refusal, or an empty text."""
    return Message(Kind.WELCOME, 0, refusal[:1000].encode())


def decode_welcome(message: Message) -> str:
    """Return why a hello was refused; an empty text if it was accepted."""
    if message.kind is not Kind.WELCOME or len(message.body) > _BYTES_MAX:
        raise PeerViolation("a hello was answered with something else")
    return bytes(message.body).decode("utf-8", "replace")
