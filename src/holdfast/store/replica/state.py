"""The state of a replicated store as bytes: what a member that joins, or lags far behind, is given.

It is all that the log has led to: keys and leases, the clients' sessions with the answers that they
may still ask for, the store's time, and where the members are.
"""

from __future__ import annotations

import struct

from holdfast.errors import PeerViolation, UsageError
from holdfast.ids import LeaseId, SessionId
from holdfast.records import dataclass
from holdfast.store.clients import ClientSession
from holdfast.store.keyspace import Keyspace, SavedItem, SavedLease, Snapshot
from holdfast.store.replica.places import MemberPlaces
from holdfast.store.wire import Reader, put_text

__all__ = ["StoreState", "decode_state", "encode_state"]

_HEAD = struct.Struct(">QdQQIIII")
_LEASE = struct.Struct(">Qdd")
_SESSION = struct.Struct(">QQBII")
_NUMBERED = struct.Struct(">QI")
_LINGER = struct.Struct(">Qd")
_ITEM = struct.Struct(">QQI")
_MEMBER = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class StoreState:
    """What the log has led to."""

    incarnation: int
    time: float
    places: MemberPlaces
    sessions: tuple[ClientSession, ...]
    keyspace: Keyspace


def encode_state(state: StoreState) -> bytes:
    """Encode a state."""
    saved = state.keyspace.dump()
    parts = [
        _HEAD.pack(
            state.incarnation,
            state.time,
            saved.revision,
            saved.next_lease,
            len(state.places.addresses),
            len(state.sessions),
            len(saved.leases),
            len(saved.items),
        )
    ]
    for number, where in state.places.addresses.items():
        parts.append(_MEMBER.pack(number, state.places.owners.get(number, 0)) + put_text(where))
    for session in state.sessions:
        answers, lingers = session.answers, session.lingers
        head = (session.id, session.floor, session.resumable, len(answers), len(lingers))
        parts.append(_SESSION.pack(*head))
        for number, answer in answers.items():
            parts += (_NUMBERED.pack(number, len(answer)), answer)
        parts += (_LINGER.pack(*one) for one in lingers.items())
    parts += (_LEASE.pack(*lease) for lease in saved.leases)
    for key, value, revision, lease_id in saved.items:
        parts += (put_text(key), _ITEM.pack(revision, lease_id or 0, len(value)), value)
    return b"".join(parts)


def decode_state(data: bytes) -> StoreState:
    """Decode a state; PeerViolation for anything that `encode_state` cannot give."""
    r = Reader(data)
    incarnation, time, revision, next_lease = r.u64(), r.f64(), r.u64(), r.u64()
    members, sessions, leases, items = r.u32(), r.u32(), r.u32(), r.u32()
    places = MemberPlaces()
    for _ in range(members):
        number, owner = r.u64(), r.u64()
        places.put(number, r.text(), owner)
    found_sessions = tuple(_session(r) for _ in range(sessions))
    found_leases = tuple(SavedLease(LeaseId(r.u64()), r.f64(), r.f64()) for _ in range(leases))
    found_items = tuple(_item(r) for _ in range(items))
    r.end()
    try:
        keyspace = Keyspace.load(Snapshot(revision, next_lease, found_leases, found_items))
    except UsageError as error:
        raise PeerViolation(str(error)) from None
    return StoreState(incarnation, time, places, found_sessions, keyspace)


def _session(r: Reader) -> ClientSession:
    session = ClientSession(SessionId(r.u64()), r.u64(), r.flag())
    answers, lingers = r.u32(), r.u32()
    session.answers = {r.u64(): r.value() for _ in range(answers)}
    session.answers_bytes = sum(map(len, session.answers.values()))
    session.lingers = {LeaseId(r.u64()): r.f64() for _ in range(lingers)}
    return session


def _item(r: Reader) -> SavedItem:
    key, revision, lease, value = r.text(), r.u64(), r.lease(), r.value()
    return SavedItem(key, value, revision, lease)
