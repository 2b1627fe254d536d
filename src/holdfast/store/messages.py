"""What a store's client and server say to each other, once they trust each other.

Each message is one frame: a kind byte and fixed fields; the codec is as strict as `wire.py`.

    client                                            server
    Hello    my identity, which server I knew  ──▶    Welcome   my identity, do I remember you
    Call     number, all below are settled, op ──▶    Reply | Failure
    Cancel   a call that waits                 ──▶    Failure (with the missing keys) | Reply
    WatchOpen                                  ──▶    Snapshot…, then Changed as things change
    WatchClose                                 ──▶
    Ping                                       ──▶    Pong
    Parting  I live, but this connection is    ──▶
             useless: I close it

A member of a replicated store says before Welcome, and when they change, where the members are
(Members); one that does not lead says where the leader is, and closes the connection.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple, TypeAlias, assert_never

from holdfast.errors import PeerViolation
from holdfast.ids import SessionId
from holdfast.records import dataclass
from holdfast.store.ops import AnyOp, Change, Entry, Op, check_key, check_prefix
from holdfast.store.wire import Reader, decode_op, encode_op, put_entries, put_maybe, put_text

__all__ = [
    "CALLS_MAX",
    "KEY_CONTEXT",
    "WATCHES_MAX",
    "Call",
    "CallFailure",
    "Cancel",
    "Changed",
    "FromClient",
    "FromServer",
    "Hello",
    "Members",
    "Parting",
    "Ping",
    "Pong",
    "Reply",
    "WatchClose",
    "WatchOpen",
    "WatchSnapshot",
    "Welcome",
    "Why",
    "decode_from_client",
    "decode_from_server",
    "encode",
    "encode_call",
    "encode_reply",
]

KEY_CONTEXT = "store"
"""What the handshake's key is derived for: a proof for this protocol opens no other."""

CALLS_MAX = 4096
"""How many calls of a client may be unsettled at one time."""

WATCHES_MAX = 4096
"""How many watches a client may have open."""


class Why(IntEnum):
    """Why a call failed, when the store itself is well."""

    USAGE = 1
    LEASE_LOST = 2
    CANCELLED = 3
    FENCED = 4


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a connection.

    `incarnation` is 0 until a server was met; calls numbered below `floor` are settled.
    """

    session: SessionId
    incarnation: int
    floor: int


# Call and Reply are made for every call, so they are the kind of record that is cheapest to make.


class Call(NamedTuple):
    """Ask for an operation. All calls numbered below `ack` are settled at the client."""

    number: int
    ack: int
    op: AnyOp


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop waiting; the server answers with what it has."""

    number: int


@dataclass(frozen=True, slots=True)
class WatchOpen:
    """Deliver the state of a key, or of all under a prefix, and its changes."""

    watch: int
    prefix: bool
    key: str


@dataclass(frozen=True, slots=True)
class WatchClose:
    """End a watch."""

    watch: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask whether the server is there."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Say that the client gives this connection up and goes on living.

    A connection that ends without it has ended because the client did.
    """


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to Hello: which life of the server this is, and whether it knew the session."""

    incarnation: int
    resumed: bool


class Reply(NamedTuple):
    """A call's result, as `wire.py` encodes it."""

    number: int
    result: bytes


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A call's failure. `keys` are the missing ones of a cancelled wait."""

    number: int
    why: Why
    text: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchSnapshot:
    """The state under a watch at `revision`, in parts; `last` closes it."""

    watch: int
    last: bool
    revision: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """One change under a watch."""

    watch: int
    change: Change


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer that it is."""


@dataclass(frozen=True, slots=True)
class Members:
    """Where the members of a replicated store are, and where its leader is ("" if none is known).

    Without `here`, this member does not lead: ask the leader.
    """

    here: bool
    leader: str
    members: tuple[str, ...]


FromClient: TypeAlias = Hello | Call | Cancel | WatchOpen | WatchClose | Ping | Parting
FromServer: TypeAlias = Welcome | Reply | CallFailure | WatchSnapshot | Changed | Pong | Members

_CALL = struct.Struct(">BQQ")
_NUMBERED = struct.Struct(">BQ")
_HELLO = struct.Struct(">BQQQ")
_WATCH = struct.Struct(">BI")
_WELCOME = struct.Struct(">BQB")
_FAILURE = struct.Struct(">BQB")
_SNAPSHOT = struct.Struct(">BIBQ")
_CHANGED = struct.Struct(">BIQ")
_COUNT = struct.Struct(">I")


def encode(message: FromClient | FromServer) -> bytes:
    """Encode a message; client's kinds are below 16, server's above."""
    match message:
        case Call(number, ack, op):
            return encode_call(number, ack, op)
        case Reply(number, result):
            return encode_reply(number, result)
        case Changed(watch, change):
            head = _CHANGED.pack(21, watch, change.revision)
            return head + put_text(change.key) + put_maybe(change.value)
        case Hello(session, incarnation, floor):
            return _HELLO.pack(1, session, incarnation, floor)
        case Cancel(number):
            return _NUMBERED.pack(3, number)
        case WatchOpen(watch, prefix, key):
            return _WATCH.pack(4, watch) + bytes((prefix,)) + put_text(key)
        case WatchClose(watch):
            return _WATCH.pack(5, watch)
        case Ping():
            return b"\x06"
        case Parting():
            return b"\x07"
        case Welcome(incarnation, resumed):
            return _WELCOME.pack(17, incarnation, resumed)
        case CallFailure(number, why, text, keys):
            parts = [_FAILURE.pack(19, number, why), put_maybe(text.encode())]
            parts.append(_COUNT.pack(len(keys)))
            return b"".join(parts + [put_text(key) for key in keys])
        case WatchSnapshot(watch, last, revision, entries):
            return _SNAPSHOT.pack(20, watch, last, revision) + put_entries(entries)
        case Pong():
            return b"\x16"
        case Members(here, leader, members):
            listed = b"".join(map(put_text, members))
            return bytes((23, here)) + put_text(leader) + _COUNT.pack(len(members)) + listed
        case _:
            assert_never(message)


def encode_call(number: int, ack: int, op: Op[object]) -> bytes:
    """Encode a Call: what every call costs a client goes by the shortest way."""
    return _CALL.pack(2, number, ack) + encode_op(op)


def encode_reply(number: int, result: bytes) -> bytes:
    """Encode a Reply, as above for a server."""
    return _NUMBERED.pack(18, number) + result


def decode_from_client(data: bytes) -> FromClient:
    """Decode what a client sent; PeerViolation for anything that `encode` cannot give."""
    if data[:1] == b"\x02" and len(data) >= _CALL.size:  # the common case, by the shortest way
        _, number, ack = _CALL.unpack_from(data)
        return Call(number, ack, decode_op(data, _CALL.size))
    r = Reader(data)
    kind = r.u8()
    message: FromClient
    match kind:
        case 1:
            message = Hello(SessionId(r.u64()), r.u64(), r.u64())
        case 3:
            message = Cancel(r.u64())
        case 4:
            message = WatchOpen(r.u32(), r.flag(), r.text())
            _check_watch(message)
        case 5:
            message = WatchClose(r.u32())
        case 6:
            message = Ping()
        case 7:
            message = Parting()
        case _:
            raise PeerViolation(f"message kind {kind} is unknown, or cut short")
    r.end()
    return message


def decode_from_server(data: bytes) -> FromServer:
    """Decode what a server sent; PeerViolation for anything that `encode` cannot give."""
    if data[:1] == b"\x12" and len(data) >= _NUMBERED.size:  # as above
        return Reply(_NUMBERED.unpack_from(data)[1], data[_NUMBERED.size :])
    r = Reader(data)
    kind = r.u8()
    message: FromServer
    match kind:
        case 17:
            message = Welcome(r.u64(), r.flag())
        case 19:
            message = CallFailure(r.u64(), _why(r.u8()), r.long_text(), r.texts())
        case 20:
            message = WatchSnapshot(r.u32(), r.flag(), r.u64(), r.entries())
        case 21:
            watch, revision = r.u32(), r.u64()
            message = Changed(watch, Change(r.text(), r.maybe(), revision))
        case 22:
            message = Pong()
        case 23:
            message = Members(r.flag(), r.text(), r.texts())
        case _:
            raise PeerViolation(f"message kind {kind} is unknown, or cut short")
    r.end()
    return message


def _why(number: int) -> Why:
    try:
        return Why(number)
    except ValueError:
        raise PeerViolation(f"failure kind {number} is unknown") from None


def _check_watch(message: WatchOpen) -> None:
    try:
        check_prefix(message.key) if message.prefix else check_key(message.key)
    except ValueError as error:
        raise PeerViolation(f"a watch is out of bounds: {error}") from None
