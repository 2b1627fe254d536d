"""What the members of a replicated store say to each other, as frames.

A member opens one connection to each other member, for what it has to say; what is said to it comes
by connections that the others open. The first frame tells what a connection is for:

    MemberHello  from which member, to which                ──▶   (Dismissal, if it is no member)
                 then Raft's messages, each cut into parts that fit into a frame
    ASK          are you there?                             ──▶   ALIVE
    PARTING      I close this connection, and live on
    JoinRequest  my number, where I can be reached          ──▶   JoinReply
    LeaveRequest my number: remove me                       ──▶   JoinReply

Numbers are big-endian; what `encode` cannot give is a PeerViolation.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, TypeAlias, assert_never

from holdfast.errors import PeerViolation
from holdfast.records import dataclass
from holdfast.store.raft import messages as raft
from holdfast.store.replica.policy import MEMBERS_MAX
from holdfast.store.wire import Reader, put_maybe, put_text

__all__ = [
    "ALIVE",
    "ASK",
    "PARTING",
    "Dismissal",
    "FirstWord",
    "JoinReply",
    "JoinRequest",
    "JoinState",
    "LeaveRequest",
    "MemberHello",
    "PartsReader",
    "decode_answer",
    "decode_first",
    "decode_message",
    "encode_answer",
    "encode_first",
    "encode_message",
    "is_members_word",
    "parts_of",
]

PART_BYTES = 1 << 20
MESSAGE_BYTES_MAX = 1 << 30
_HELLO, _JOIN, _REPLY, _DISMISSAL, _PART, _LAST = 32, 33, 34, 35, 36, 37
ASK, ALIVE, PARTING, _LEAVE = b"\x26", b"\x27", b"\x28", 41
_U64 = struct.Struct(">Q")
_U32 = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class MemberHello:
    """The first frame of a connection between members."""

    sender: int
    to: int


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The first frame of a process that wants to be a member, of `most` members at most.

    `owner` is the session of a client in the same process, 0 if there is none.
    """

    member: int
    address: str
    owner: int = 0
    most: int = MEMBERS_MAX


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """The first frame of a member that wants to be none any more."""

    member: int


FirstWord: TypeAlias = MemberHello | JoinRequest | LeaveRequest


class JoinState(IntEnum):
    """What became of a request to join, or to leave."""

    JOINED = 1
    WAIT = 2
    """Ask again soon: another change is under way, or no member leads."""
    ELSEWHERE = 3
    """Ask the leader."""
    REFUSED = 4
    GONE = 5
    """The process is no member."""


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The answer to a JoinRequest. `leader` is "" if none is known."""

    state: JoinState
    incarnation: int
    leader: str
    members: tuple[tuple[int, str], ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Dismissal:
    """You are no member of this store."""

    why: str


def is_members_word(frame: bytes) -> bool:
    """Say whether a connection that begins with this frame is a member's, not a client's."""
    return frame[:1] in (bytes((_HELLO,)), bytes((_JOIN,)), bytes((_LEAVE,)))


def encode_first(word: FirstWord) -> bytes:
    """Encode the first frame of a connection."""
    match word:
        case MemberHello(sender, to):
            return bytes((_HELLO,)) + struct.pack(">QQ", sender, to)
        case JoinRequest(member, address, owner, most):
            return struct.pack(">BQQI", _JOIN, member, owner, most) + put_text(address)
        case LeaveRequest(member):
            return bytes((_LEAVE,)) + _U64.pack(member)
        case _:
            assert_never(word)


def decode_first(frame: bytes) -> FirstWord:
    """Decode the first frame of a member's connection."""
    r = Reader(frame)
    word: FirstWord
    match r.u8():
        case 32:
            word = MemberHello(r.u64(), r.u64())
        case 33:
            member, owner, most = r.u64(), r.u64(), r.u32()
            word = JoinRequest(member, r.text(), owner, most)
        case 41:
            word = LeaveRequest(r.u64())
        case kind:
            raise PeerViolation(f"message kind {kind} does not begin a member's connection")
    r.end()
    return word


def encode_answer(answer: JoinReply | Dismissal) -> bytes:
    """Encode what the other end of a connection answers to its first frame."""
    match answer:
        case JoinReply(state, incarnation, leader, members, why):
            head = bytes((_REPLY, state)) + _U64.pack(incarnation) + put_text(leader)
            listed = b"".join(_U64.pack(number) + put_text(where) for number, where in members)
            return head + _U32.pack(len(members)) + listed + put_maybe(why.encode())
        case Dismissal(why):
            return bytes((_DISMISSAL,)) + put_maybe(why.encode())
        case _:
            assert_never(answer)


def decode_answer(frame: bytes) -> JoinReply | Dismissal:
    """Decode what `encode_answer` gives."""
    r = Reader(frame)
    answer: JoinReply | Dismissal
    match r.u8():
        case 34:
            state = r.u8()
            if state not in tuple(JoinState):
                raise PeerViolation(f"the answer {state} to a request to join is unknown")
            incarnation, leader = r.u64(), r.text()
            members = tuple((r.u64(), r.text()) for _ in range(r.count(10)))
            answer = JoinReply(JoinState(state), incarnation, leader, members, r.long_text())
        case 35:
            answer = Dismissal(r.long_text())
        case kind:
            raise PeerViolation(f"message kind {kind} is no answer to a member")
    r.end()
    return answer


# Raft's messages: a code for each kind, and its fields in order, each by its annotation.

_KINDS: tuple[type[Any], ...] = (
    raft.PreVote,
    raft.PreVoteReply,
    raft.Vote,
    raft.VoteReply,
    raft.AppendEntries,
    raft.AppendReply,
    raft.Heartbeat,
    raft.HeartbeatReply,
    raft.InstallSnapshot,
    raft.TransferLeader,
    raft.TimeoutNow,
    raft.ReadIndexReply,
    raft.Proposal,
    raft.ReadIndex,
)
_CHANGES = tuple(raft.ChangeKind)


def _put_entries(entries: tuple[raft.LogEntry, ...]) -> bytes:
    parts = [_U32.pack(len(entries))]
    for entry in entries:
        change = entry.change
        kind = 0 if change is None else 1 + _CHANGES.index(change.kind)
        member = 0 if change is None else change.member
        parts.append(struct.pack(">QQBQI", entry.term, entry.index, kind, member, len(entry.data)))
        parts.append(entry.data)
    return b"".join(parts)


def _entry(r: Reader) -> raft.LogEntry:
    term, index, kind, member, data = r.u64(), r.u64(), r.u8(), r.u64(), r.value()
    if kind > len(_CHANGES):
        raise PeerViolation(f"a change of the kind {kind} is unknown")
    change = raft.MemberChange(_CHANGES[kind - 1], member) if kind else None
    return raft.LogEntry(term, index, data, change)


def _put_snapshot(snapshot: raft.LogSnapshot) -> bytes:
    configuration = snapshot.configuration
    parts = [struct.pack(">QQ", snapshot.index, snapshot.term)]
    for members in (configuration.voters, configuration.learners):
        parts.append(struct.pack(f">I{len(members)}Q", len(members), *members))
    return b"".join(parts) + _U32.pack(len(snapshot.data)) + snapshot.data


def _snapshot(r: Reader) -> raft.LogSnapshot:
    index, term = r.u64(), r.u64()
    voters = tuple(r.u64() for _ in range(r.count(8)))
    learners = tuple(r.u64() for _ in range(r.count(8)))
    return raft.LogSnapshot(index, term, raft.Configuration(voters, learners), r.value())


_CODECS: dict[str, tuple[Callable[[Any], bytes], Callable[[Reader], Any]]] = {
    "int": (_U64.pack, Reader.u64),
    "bool": (lambda flag: bytes((flag,)), Reader.flag),
    "bytes": (lambda data: _U32.pack(len(data)) + data, Reader.value),
    "tuple[LogEntry, ...]": (
        _put_entries,
        lambda r: tuple(_entry(r) for _ in range(r.count(29))),
    ),
    "LogSnapshot": (_put_snapshot, _snapshot),
}
_FIELDS = {
    kind: tuple((field.name, *_CODECS[str(field.type)]) for field in dataclasses.fields(kind))
    for kind in _KINDS
}
_CODES = {kind: code for code, kind in enumerate(_KINDS)}


def encode_message(message: raft.Message) -> bytes:
    """Encode one of Raft's messages, of any length."""
    kind = type(message)
    fields = (put(getattr(message, name)) for name, put, _ in _FIELDS[kind])
    return bytes((_CODES[kind],)) + b"".join(fields)


def decode_message(data: bytes) -> raft.Message:
    """Decode what `encode_message` gives."""
    r = Reader(data)
    code = r.u8()
    if code >= len(_KINDS):
        raise PeerViolation(f"a member's message of the kind {code} is unknown")
    kind = _KINDS[code]
    message: raft.Message = kind(*[read(r) for _, _, read in _FIELDS[kind]])
    r.end()
    return message


def parts_of(data: bytes) -> Iterator[bytes]:
    """Cut a message into frames."""
    for start in range(0, len(data), PART_BYTES):
        end = start + PART_BYTES
        yield bytes((_PART if end < len(data) else _LAST,)) + data[start:end]


class PartsReader:
    """Put messages together again, part by part."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, frame: bytes) -> bytes | None:
        """Take a frame; return the message that it completes, or None."""
        if frame[:1] not in (bytes((_PART,)), bytes((_LAST,))):
            raise PeerViolation(f"message kind {frame[:1].hex()} is no part of a member's message")
        self._size += len(frame) - 1
        if self._size > MESSAGE_BYTES_MAX:
            raise PeerViolation(f"a member's message of more than {MESSAGE_BYTES_MAX} bytes")
        self._parts.append(frame[1:])
        if frame[0] == _PART:
            return None
        message = b"".join(self._parts)
        self._parts, self._size = [], 0
        return message
