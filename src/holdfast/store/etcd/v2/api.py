"""etcd's v2 keys API: names, values, requests, and what the answers mean.

In v2 keys are paths, values are text, and a name that begins with "_" is hidden. So a key becomes
one segment of a path, in which everything but ASCII letters, digits, "-", "_" and "." is written as
"=" and two hexadecimal digits for each byte of its UTF-8, and so is a leading "_" or ".". A value
becomes the number of its lease, 0 for none, ":" and base64. etcd takes no request line of more
than 4 KiB, so a long key is named "=~" and its SHA-256, and follows its value after another ":".

    <prefix>/keys/<key>       a value
    <prefix>/leases/<number>  a lease: it has a time to live, and is gone when that ends

A key whose lease is gone does not exist, whether or not its node has been removed yet.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from enum import IntEnum
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from holdfast.clock import Deadline
from holdfast.errors import PeerViolation, Refused, UsageError
from holdfast.ids import LeaseId
from holdfast.net.address import Address
from holdfast.records import dataclass
from holdfast.store.etcd.http.cluster import ATTEMPT_S, EtcdClient, Lane, not_etcd
from holdfast.store.etcd.http.connection import HttpConnection, HttpRequest, Lost, NotSent
from holdfast.store.etcd.http.reply import HttpReply, ReplyParser, decoding
from holdfast.store.ops import Change, Entry

__all__ = [
    "Answer",
    "ErrorCode",
    "Layout",
    "Node",
    "Poll",
    "V2Rejected",
    "ask",
    "envelope",
    "exchange",
    "get",
    "judge",
    "key_from",
    "node_from",
    "put",
    "remove",
    "segment",
]

_API = "etcd's v2 keys API (etcd before 3.6, started with --enable-v2)"
_ROOT = "/v2/keys"
_FORM = "application/x-www-form-urlencoded"
_ESCAPED = re.compile(rb"[^A-Za-z0-9._-]|^[._]")
_CODE = re.compile(r"=([0-9A-F]{2})")
_HASHED = "=~"  # no escaped key begins so
_NAME_MAX = 1024
_REMOVALS = frozenset({"delete", "expire", "compareAndDelete"})


class ErrorCode(IntEnum):
    """The errors of the v2 API that we tell apart."""

    NOT_FOUND = 100
    COMPARE_FAILED = 101
    EXISTS = 105
    UNAUTHORIZED = 110
    HISTORY_CLEARED = 401


class V2Rejected(Exception):
    """etcd said no, for a reason that the operation itself must judge. Never leaves the store."""

    def __init__(self, code: ErrorCode, index: int) -> None:
        super().__init__(code.name)
        self.code = code
        self.index = index


# Names and values.


def segment(key: str) -> str:
    """Return a key as one segment of a path."""
    name = _ESCAPED.sub(lambda found: b"=%02X" % found[0][0], key.encode()).decode()
    return name if len(name) <= _NAME_MAX else _HASHED + sha256(key.encode()).hexdigest()


def envelope(key: str, value: bytes, lease: LeaseId | None) -> str:
    """Return what is stored for a value."""
    text = f"{lease or 0}:{b64encode(value).decode()}"
    if segment(key).startswith(_HASHED):
        text += f":{b64encode(key.encode()).decode()}"
    return text


def key_from(name: str, stored: str) -> str:
    """Return the key of a segment and what is stored there; PeerViolation if no key gives them."""
    with decoding():
        if name.startswith(_HASHED):
            return b64decode(stored.split(":")[2]).decode()
        text = _CODE.sub(lambda found: chr(int(found[1], 16)), name)
        return text.encode("latin-1").decode()


@dataclass(frozen=True, slots=True)
class Node:
    """A key as it is stored; its lease may be dead."""

    key: str
    value: bytes
    lease: LeaseId | None
    index: int

    @property
    def entry(self) -> Entry:
        """What a reader gets."""
        return Entry(self.key, self.value, self.index)


def node_from(item: dict[str, Any]) -> Node:
    """Read a node of the API."""
    with decoding():
        stored = item["value"]
        lease, value = stored.split(":")[:2]
        key = key_from(item["key"].rpartition("/")[2], stored)
        index = int(item["modifiedIndex"])
        return Node(key, b64decode(value, validate=True), LeaseId(int(lease)) or None, index)


class Layout:
    """Where the nodes of one store are."""

    def __init__(self, prefix: str) -> None:
        self.root = f"/{segment(prefix)}"
        self.keys = f"{self.root}/keys"
        self.leases = f"{self.root}/leases"

    def key(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.keys}/{segment(key)}"

    def lease(self, lease: LeaseId) -> str:
        """Return the path of a lease."""
        return f"{self.leases}/{lease}"


# Requests.


def get(path: str, **options: str) -> HttpRequest:
    """Read a node. Through the leader, unless it waits, which no leader does for others."""
    if "wait" not in options:
        options["quorum"] = "true"
    return HttpRequest("GET", f"{_ROOT}{path}?{urlencode(options)}")


def put(path: str, **options: str) -> HttpRequest:
    """Write a node: its `value`, or its `ttl` afresh."""
    return HttpRequest("PUT", f"{_ROOT}{path}", urlencode(options).encode(), _FORM)


def remove(path: str, **options: str) -> HttpRequest:
    """Delete a node."""
    return HttpRequest("DELETE", f"{_ROOT}{path}?{urlencode(options)}")


# Answers.


@dataclass(frozen=True, slots=True)
class Answer:
    """What etcd answered, and the index of its store at that moment."""

    body: dict[str, Any]
    index: int

    @property
    def node(self) -> Node:
        """The key that was read or written."""
        with decoding():
            item = self.body["node"]
        return node_from(item)


def judge(reply: HttpReply, address: Address, what: str) -> Answer:
    """Return the answer in a reply; Rejected, or what is final."""
    try:
        body = reply.json()
    except PeerViolation:
        raise not_etcd(reply, address, _API) from None
    with decoding():
        index = int(reply.headers.get("x-etcd-index", body.get("index", 0)))
    if "errorCode" not in body:
        if "node" not in body:
            raise not_etcd(reply, address, _API)
        return Answer(body, index)
    said = f"{body.get('message')}: {body.get('cause')}"
    try:
        code = ErrorCode(body["errorCode"])
    except ValueError:
        raise UsageError(f"{what}: etcd refuses it: {said:.160}") from None
    if code is ErrorCode.UNAUTHORIZED:
        raise Refused(f"{what}: {address} answers {said!r:.160}", address=str(address))
    raise V2Rejected(code, index)


def exchange(
    client: EtcdClient, lane: Lane, request: HttpRequest, deadline: Deadline, what: str
) -> Answer:
    """Ask, once. NotSent, Lost or Rejected."""
    address = lane.connection.address
    return judge(client.exchange(lane, request, deadline), address, what)


def ask(
    client: EtcdClient,
    lane: Lane,
    request: HttpRequest,
    deadline: Deadline,
    what: str,
    *,
    writes: bool = False,
    repeat: bool = True,
) -> Answer:
    """Ask until a member answers. Rejected, or the store's errors.

    Unless `repeat`, an attempt that may have been performed is the last one.
    """
    retries = client.retries(what, deadline, writes=writes)
    while True:
        try:
            # What cannot be repeated is given all the time there is.
            limit = retries.attempt() if repeat else deadline
            return exchange(client, lane, request, limit, what)
        except (NotSent, Lost) as error:
            if isinstance(error, Lost) and not repeat:
                retries.lost = writes
                retries.give_up(error)
            retries.failed(error)


class Poll:
    """The changes under a path, one answer for each. A `Source` of `EtcdWatch`.

    The end of a lease is one event, and so is a write with a lease that may be dead by now: what
    they mean for the keys is found by reading them again, so after these `is_open` is false.
    `concerns` says which keys matter.
    """

    def __init__(self, client: EtcdClient, path: str, concerns: Callable[[str], bool]) -> None:
        self._client = client
        self._path = path
        self._concerns = concerns
        self._connection: HttpConnection | None = None
        self._parser: ReplyParser | None = None  # of the answer that is to come
        self._body = bytearray()

    def open(self, revision: int, deadline: Deadline) -> None:
        """Ask for the first change at or after `revision`. NotSent or Lost."""
        limit = deadline.sooner(ATTEMPT_S)
        if self._parser is not None:  # an answer is still to come: that connection is not free
            self.close()
        if self._connection is None:
            self._connection = self._client.new_connection()
        connection = self._connection
        request = get(self._path, wait="true", recursive="true", waitIndex=str(revision))
        self._body.clear()
        try:
            connection.open(limit)
            self._client.check_open()
            self._parser = connection.send(request, limit)
        except (NotSent, Lost):
            self._client.failed_at(connection.address)
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether an answer is to come."""
        return self._parser is not None

    def ready(self) -> bool:
        """Say whether `changes` would not wait."""
        connection = self._connection
        return self._parser is not None and connection is not None and connection.readable()

    def changes(self, deadline: Deadline) -> list[Change]:
        """Read once; return the change when its answer is whole, and ask for the next.

        NoAnswer at the deadline, Lost when the connection ends.
        """
        if self._connection is None or self._parser is None:
            raise Lost("nothing was asked")
        self._body += self._connection.read_body(self._parser, deadline)
        if not self._parser.done:
            return []
        parser, self._parser = self._parser, None
        reply = HttpReply(parser.status, parser.headers, bytes(self._body))
        return self._changes_in(reply, self._connection.address)

    def shut(self) -> None:
        """Wake the reader."""
        connection = self._connection
        if connection is not None:
            connection.shut()

    def close(self) -> None:
        """Let the connection go."""
        self._parser = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _changes_in(self, reply: HttpReply, address: Address) -> list[Change]:
        if reply.status >= 500:
            raise Lost(f"{address} ended the wait for a change")
        try:
            answer = judge(reply, address, "waiting for a change")
        except V2Rejected:
            return []  # the history is gone: read again
        with decoding():
            item = answer.body["node"]
            index = int(item["modifiedIndex"])
            folder, _, name = item["key"].rpartition("/")
            removed = answer.body["action"] in _REMOVALS
            stored = (answer.body["prevNode"] if removed else item).get("value", "")
        found: list[Change] = []
        if folder.endswith("/keys"):
            key = key_from(name, stored)
            if self._concerns(key):
                node = None if removed else node_from(item)
                if node is not None and node.lease is not None:
                    return []  # read again
                found.append(Change(key, None if node is None else node.value, index))
        elif removed:
            return []  # a lease, or everything: read again
        self.open(index + 1, Deadline.after(ATTEMPT_S, self._client.clock))
        return found
