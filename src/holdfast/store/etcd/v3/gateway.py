"""etcd's v3 API as its JSON gateway speaks it: messages, and what the refusals mean.

In that dialect 64-bit numbers are strings, keys and values are base64, and whatever is zero,
false or empty is left out of a reply.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from enum import IntEnum
from typing import Any, TypeAlias

from holdfast.clock import Deadline
from holdfast.errors import PeerViolation, Refused, StoreFull, StoreUnavailable, UsageError
from holdfast.net.address import Address
from holdfast.records import dataclass
from holdfast.store.etcd.http.cluster import EtcdClient, Lane, not_etcd
from holdfast.store.etcd.http.connection import HttpRequest, Lost, NotSent
from holdfast.store.etcd.http.reply import HttpReply, decoding

__all__ = [
    "Code",
    "Gateway",
    "GatewayRejected",
    "Kv",
    "Message",
    "Txn",
    "compare",
    "delete_op",
    "kv_of",
    "kvs_of",
    "put_op",
    "range_op",
    "read_txn",
    "revision_of",
    "text",
    "watch_request",
]

Message: TypeAlias = dict[str, Any]

_API = "etcd's v3 API over JSON (etcd 3.4 or newer, with --enable-grpc-gateway)"
# These have no codes of their own.
_NO_USER = "user name is empty"
_TOO_LONG = "larger than max"
_NO_SPACE = "space exceeded"


class Code(IntEnum):
    """The gRPC codes that we tell apart."""

    INVALID = 3
    NOT_FOUND = 5
    DENIED = 7
    EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNAUTHENTICATED = 16


class GatewayRejected(Exception):
    """etcd said no with one of the codes that the caller expects. Never leaves the store."""


@dataclass(frozen=True, slots=True)
class Kv:
    """A key as etcd stores it."""

    key: bytes
    value: bytes
    revision: int
    lease: int


# Messages.


def text(data: bytes) -> str:
    """Return bytes as the gateway wants them."""
    return b64encode(data).decode()


def range_op(key: bytes, end: bytes = b"", revision: int = 0, count_only: bool = False) -> Message:
    """Read a key, or all keys from `key` up to but without `end`."""
    message: Message = {"key": text(key)}
    if end:
        message["range_end"] = text(end)
    if revision:
        message["revision"] = str(revision)
    if count_only:
        message["count_only"] = True
    return {"request_range": message}


def put_op(key: bytes, value: bytes, lease: int | None) -> Message:
    """Write a key."""
    return {"request_put": {"key": text(key), "value": text(value), "lease": str(lease or 0)}}


def delete_op(key: bytes, end: bytes = b"") -> Message:
    """Delete a key, or a range if there is an `end`."""
    return {"request_delete_range": {"key": text(key), "range_end": text(end)}}


def compare(key: bytes, target: str, value: int | bytes, result: str = "EQUAL") -> Message:
    """Hold a key's MOD or CREATE revision, or its VALUE, against `value`."""
    field = "value" if target == "VALUE" else f"{target.lower()}_revision"
    operand = text(value) if isinstance(value, bytes) else str(value)
    return {"key": text(key), "target": target, "result": result, field: operand}


def watch_request(key: bytes, end: bytes, revision: int) -> bytes:
    """Ask for the changes of a key, or of a range if there is an `end`, from a revision on.

    One watch in a stream: over HTTP/1.1 the gateway stops reading requests when it first answers.
    """
    message: Message = {"key": text(key), "start_revision": str(revision)}
    if end:
        message["range_end"] = text(end)
    return json.dumps({"create_request": message}).encode()


# Replies.


def revision_of(message: Message) -> int:
    """Return the revision of the store at which a reply was made."""
    return int(message["header"]["revision"])


def kv_of(item: Message) -> Kv:
    """Read one key."""
    return Kv(
        b64decode(item["key"]),
        b64decode(item.get("value", "")),
        int(item["mod_revision"]),
        int(item.get("lease", 0)),
    )


def kvs_of(message: Message) -> list[Kv]:
    """Return the keys that a range found."""
    return [kv_of(item) for item in message.get("kvs", ())]


@dataclass(frozen=True, slots=True)
class Txn:
    """A transaction's outcome. `ranges` holds what its range operations found, in order."""

    succeeded: bool
    revision: int
    ranges: tuple[list[Kv], ...]


class Gateway:
    """Calls of the v3 API. Thread-safe; each call runs on its caller's thread and lane."""

    def __init__(self, client: EtcdClient) -> None:
        self.client = client

    def ask(
        self,
        lane: Lane,
        path: str,
        body: Message,
        deadline: Deadline,
        what: str,
        expect: Code | None = None,
        writes: bool = False,
    ) -> Message:
        """Call until a member answers: only for what may be performed twice."""
        retries = self.client.retries(what, deadline, writes=writes)
        while True:
            try:
                return self.call(lane, path, body, retries.attempt(), what, expect)
            except (NotSent, Lost) as error:
                retries.failed(error)

    def call(
        self,
        lane: Lane,
        path: str,
        body: Message,
        deadline: Deadline,
        what: str,
        expect: Code | None = None,
    ) -> Message:
        """Call one member. NotSent, Lost, or Rejected with the code that is expected.

        Other refusals are final, and raised as what the store's caller should see.
        """
        address = lane.connection.address
        request = HttpRequest("POST", path, json.dumps(body).encode())
        reply = self.client.exchange(lane, request, deadline)
        return _judge(reply, address, what, expect)

    def read(self, lane: Lane, op: Message, deadline: Deadline, what: str) -> Message:
        """Perform one range operation."""
        return self.ask(lane, "/v3/kv/range", op["request_range"], deadline, what)

    def txn(
        self,
        lane: Lane,
        compares: list[Message],
        success: list[Message],
        failure: list[Message],
        deadline: Deadline,
        what: str,
    ) -> Txn:
        """Try a transaction once. NotSent, Lost, or Rejected if a lease was not found."""
        body = {"compare": compares, "success": success, "failure": failure}
        return read_txn(self.call(lane, "/v3/kv/txn", body, deadline, what, expect=Code.NOT_FOUND))


def _judge(reply: HttpReply, address: Address, what: str, expect: Code | None) -> Message:
    try:
        message = reply.json()
    except PeerViolation:
        raise not_etcd(reply, address, _API) from None
    if reply.status == 200 and "error" not in message:
        # A streaming call wraps its messages; of those that we ask once, there is one.
        result: Message = message.get("result", message)
        return result
    if isinstance(message.get("error"), dict):  # the same, from a streaming call
        message = message["error"]
    code = message.get("code", message.get("grpc_code"))
    said = str(message.get("message", ""))
    if not isinstance(code, int):
        raise not_etcd(reply, address, _API)
    if code == expect:
        raise GatewayRejected(said)
    match code:
        case Code.EXHAUSTED if _NO_SPACE in said:
            # etcd writes no more, though it renews and ends leases, until its alarm is disarmed.
            raise StoreFull(f"{what}: {address} answers {said!r}", address=str(address))
        case Code.EXHAUSTED if _TOO_LONG not in said:
            # Too busy: nothing was performed, and that may change.
            raise NotSent(f"{address} answers {said!r}", address=str(address))
        case Code.DENIED | Code.UNAUTHENTICATED:
            raise Refused(f"{what}: {address} answers {said!r}", address=str(address))
        case Code.INVALID if _NO_USER in said:
            raise Refused(
                f"{what}: {address} wants a user and a password, which are not supported",
                address=str(address),
            )
        case Code.INVALID | Code.OUT_OF_RANGE | Code.EXHAUSTED:
            raise UsageError(f"{what}: etcd refuses it: {said}{_hint(said)}")
        case _:
            raise StoreUnavailable(f"{what}: {address} answers {said!r}", address=str(address))


def read_txn(message: Message) -> Txn:
    """Take a transaction's reply apart."""
    with decoding():
        ranges = tuple(
            kvs_of(response["response_range"])
            for response in message.get("responses", ())
            if "response_range" in response
        )
        return Txn(bool(message.get("succeeded")), revision_of(message), ranges)


def _hint(said: str) -> str:
    if "too many operations" in said:
        return "; start the server with a larger --max-txn-ops, or write fewer keys at once"
    if "too large" in said or _TOO_LONG in said:
        return "; start the server with a larger --max-request-bytes, or write less at once"
    return ""
