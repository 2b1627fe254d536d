"""What the log of a replicated store holds: batches of commands, each batch with a moment.

    batch    f64 the store's time, then commands, each with a u32 length
    command  u8 kind, then its fields, big-endian

The store's time moves only by these moments, so that every member ends the same leases at the same
place of the log. A batch without commands is there for its moment alone. Batches come from members
that have authenticated themselves; one that cannot be read is a PeerViolation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias, assert_never

from holdfast.errors import PeerViolation
from holdfast.ids import SessionId
from holdfast.records import dataclass
from holdfast.store.messages import Call, Hello, decode_from_client
from holdfast.store.wire import Reader, put_text

__all__ = [
    "Batch",
    "ClientDied",
    "ClientWrote",
    "Command",
    "LeaderBegan",
    "MemberAnnounced",
    "SessionForgotten",
    "SessionOpened",
    "decode_batch",
    "encode_batch",
]

_TIME = struct.Struct(">d")
_LENGTH = struct.Struct(">I")
_OPENED = struct.Struct(">BQQQQ")
_NAMED = struct.Struct(">BQ")
_OWNER = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A client said Hello on a connection of the member that leads."""

    hello: Hello
    connection: int


@dataclass(frozen=True, slots=True)
class ClientWrote:
    """A client asked for a write; `frame` is its Call as it came."""

    session: SessionId
    frame: bytes

    @property
    def call(self) -> Call:
        """The call, decoded."""
        call = decode_from_client(self.frame)
        if not isinstance(call, Call):
            raise PeerViolation("a command holds a message that is no call")
        return call


@dataclass(frozen=True, slots=True)
class ClientDied:
    """The client's end closed its connection, and the client did not say that it goes on living."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class SessionForgotten:
    """A client has been away for too long."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class LeaderBegan:
    """A member leads from here on: every lease has its whole time again."""


@dataclass(frozen=True, slots=True)
class MemberAnnounced:
    """Where a member that is to join can be reached; `owner`: see `places.py`, 0 for none."""

    member: int
    address: str
    owner: int = 0


Command: TypeAlias = (
    SessionOpened | ClientWrote | ClientDied | SessionForgotten | LeaderBegan | MemberAnnounced
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Commands that are applied one after the other at one moment of the store's time."""

    at: float
    commands: tuple[Command, ...]


def encode_batch(at: float, commands: Iterable[Command]) -> bytes:
    """Encode a batch."""
    parts = [_TIME.pack(at)]
    for command in commands:
        body = _encode(command)
        parts += (_LENGTH.pack(len(body)), body)
    return b"".join(parts)


def decode_batch(data: bytes) -> Batch:
    """Decode a batch; PeerViolation for anything that `encode_batch` cannot give."""
    reader = Reader(data)
    at = reader.f64()
    commands = []
    while reader.left:
        commands.append(_decode(reader.value()))
    return Batch(at, tuple(commands))


def _encode(command: Command) -> bytes:
    match command:
        case ClientWrote(session, frame):
            return _NAMED.pack(2, session) + frame
        case SessionOpened(hello, connection):
            return _OPENED.pack(1, hello.session, hello.incarnation, hello.floor, connection)
        case ClientDied(session):
            return _NAMED.pack(3, session)
        case SessionForgotten(session):
            return _NAMED.pack(4, session)
        case LeaderBegan():
            return b"\x05"
        case MemberAnnounced(member, address, owner):
            return _NAMED.pack(6, member) + put_text(address) + _OWNER.pack(owner)
        case _:
            assert_never(command)


def _decode(body: bytes) -> Command:
    r = Reader(body)
    command: Command
    match r.u8():
        case 1:
            command = SessionOpened(Hello(SessionId(r.u64()), r.u64(), r.u64()), r.u64())
        case 2:
            command = ClientWrote(SessionId(r.u64()), r.rest())
        case 3:
            command = ClientDied(SessionId(r.u64()))
        case 4:
            command = SessionForgotten(SessionId(r.u64()))
        case 5:
            command = LeaderBegan()
        case 6:
            command = MemberAnnounced(r.u64(), r.text(), r.u64())
        case kind:
            raise PeerViolation(f"a command is of the unknown kind {kind}")
    r.end()
    return command
