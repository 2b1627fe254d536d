"""What a command asks an agent, and what the agent answers: one frame each, JSON inside.

    {"version": 1, "ask": "stop", "grace_s": 5.0}
    {"answer": {...}} or {"refused": "why"}

Both ends belong to one user, but not to one version of holdfast, and anything may lie in that
user's folder: what does not fit is a PeerViolation that names the field.

Guarantees
    CM-1  Whatever bytes come, decoding returns a request or an answer, or raises PeerViolation.
    CM-2  A frame is at most REQUEST_BYTES_MAX or REPLY_BYTES_MAX: neither end can make the other
          one allocate more.
"""

from __future__ import annotations

import json
import math
from typing import Any, TypeAlias, assert_never

from holdfast.errors import PeerViolation, Refused
from holdfast.records import dataclass

__all__ = [
    "EVENTS_WAIT_MAX_S",
    "REPLY_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "AskEvents",
    "AskStacks",
    "AskStatus",
    "AskStop",
    "Request",
    "decode_reply",
    "decode_request",
    "encode_refusal",
    "encode_reply",
    "encode_request",
]

VERSION = 1
REQUEST_BYTES_MAX = 64 * 1024
REPLY_BYTES_MAX = 8 * 1024 * 1024
EVENTS_WAIT_MAX_S = 30.0
RANKS_MAX = 4096
_GRACE_MAX_S = 1e6


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Ask what this agent does."""


@dataclass(frozen=True, slots=True)
class AskStop:
    """Ask to stop the job; its workers have so many seconds, None for what the job has set."""

    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class AskEvents:
    """Ask what has happened since the event of this number; wait so long for the next one."""

    after: int = 0
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AskStacks:
    """Ask where the workers of these ranks are; None for all that are there."""

    ranks: tuple[int, ...] | None = None


Request: TypeAlias = AskStatus | AskStop | AskEvents | AskStacks


def encode_request(request: Request) -> bytes:
    """Return a request as bytes."""
    fields: dict[str, object]
    match request:
        case AskStatus():
            fields = {"ask": "status"}
        case AskStop(grace_s):
            fields = {"ask": "stop", "grace_s": grace_s}
        case AskEvents(after, wait_s):
            fields = {"ask": "events", "after": after, "wait_s": wait_s}
        case AskStacks(ranks):
            fields = {"ask": "stacks", "ranks": None if ranks is None else list(ranks)}
        case _:
            assert_never(request)
    return json.dumps({"version": VERSION, **fields}).encode()


def decode_request(data: bytes) -> Request:
    """Return the request that these bytes are; PeerViolation if they are none (CM-1)."""
    fields = _load(data, "request")
    if fields.get("version") != VERSION:
        raise PeerViolation(
            f"request of version {fields.get('version')!r:.40}: this agent speaks {VERSION}; "
            "use the holdfast that started the job"
        )
    match fields.get("ask"):
        case "status":
            return AskStatus()
        case "stop":
            given = fields.get("grace_s")
            return AskStop(None if given is None else _seconds(fields, "grace_s", _GRACE_MAX_S))
        case "events":
            wait_s = _seconds(fields, "wait_s", EVENTS_WAIT_MAX_S)
            return AskEvents(_count(fields.get("after"), "after"), wait_s)
        case "stacks":
            ranks = fields.get("ranks")
            if ranks is None:
                return AskStacks()
            if not isinstance(ranks, list) or len(ranks) > RANKS_MAX:
                raise PeerViolation(f"ranks {ranks!r:.80}: must be a list of {RANKS_MAX} at most")
            return AskStacks(tuple(_count(rank, "ranks") for rank in ranks))
        case other:
            raise PeerViolation(f"ask {other!r:.80}: this agent cannot answer it")


def encode_reply(answer: dict[str, Any]) -> bytes:
    """Return an answer as bytes; a refusal in its place if it is too large."""
    data = json.dumps({"answer": answer}).encode()
    if len(data) > REPLY_BYTES_MAX:
        return encode_refusal(
            f"the answer has {len(data)} bytes, at most {REPLY_BYTES_MAX} are allowed"
        )
    return data


def encode_refusal(why: str) -> bytes:
    """Return as bytes that a request is not answered, and why."""
    return json.dumps({"refused": why[:1000]}).encode()


def decode_reply(data: bytes) -> dict[str, Any]:
    """Return an answer; Refused if the agent refused, PeerViolation if it is none (CM-1)."""
    fields = _load(data, "reply")
    if isinstance(why := fields.get("refused"), str):
        raise Refused(why)
    answer = fields.get("answer")
    if not isinstance(answer, dict):
        raise PeerViolation("reply: neither an answer nor a refusal")
    return answer


def _load(data: bytes, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PeerViolation(f"{what}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise PeerViolation(f"{what}: must be an object")
    return fields


def _count(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise PeerViolation(f"{name} {value!r:.80}: must be 0, 1, 2 ...")
    return value


def _seconds(fields: dict[str, Any], name: str, most: float) -> float:
    value = fields.get(name)
    number = float(value) if type(value) in (int, float) else math.nan  # type: ignore[arg-type]
    if not 0 <= number <= most:
        raise PeerViolation(f"{name} {value!r:.80}: must be 0 to {most:g} seconds")
    return number
