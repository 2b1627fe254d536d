"""The state of a store comes back as it was; what is none is refused."""

from __future__ import annotations

import pytest

from holdfast.errors import PeerViolation
from holdfast.ids import LeaseId, SessionId
from holdfast.store.clients import ClientSession
from holdfast.store.keyspace import Keyspace
from holdfast.store.ops import LeaseGrant, Set
from holdfast.store.replica.places import MemberPlaces
from holdfast.store.replica.state import StoreState, decode_state, encode_state


def some_state() -> StoreState:
    keyspace = Keyspace()
    lease = keyspace.apply(LeaseGrant(5.0), 1.0)
    keyspace.apply(Set("plain", b"value"), 1.0)
    keyspace.apply(Set("leased", b"", lease.id), 1.0)
    session = ClientSession(SessionId(3), 4, resumable=True)
    session.answers = {4: b"answer", 6: b""}
    session.answers_bytes = 6
    session.lingers = {LeaseId(1): 0.5}
    return StoreState(77, 2.5, MemberPlaces({1: "a:1", 2: "b:2"}, {2: 9}), (session,), keyspace)


def test_a_state_comes_back_as_it_was() -> None:
    state = some_state()
    back = decode_state(encode_state(state))
    assert (back.incarnation, back.time) == (77, 2.5)
    assert (back.places.addresses, back.places.owners) == ({1: "a:1", 2: "b:2"}, {2: 9})
    assert back.keyspace.dump() == state.keyspace.dump()
    (one,), (other,) = state.sessions, back.sessions
    for name in ("id", "floor", "resumable", "answers", "answers_bytes", "lingers", "connection"):
        assert getattr(one, name) == getattr(other, name)


def test_what_is_cut_short_or_contradicts_itself_is_refused() -> None:
    data = encode_state(some_state())
    with pytest.raises(PeerViolation):
        decode_state(data[:-1])
    with pytest.raises(PeerViolation):
        decode_state(data + b"\0")
    with pytest.raises(PeerViolation, match="newer than the store"):
        decode_state(data[:16] + bytes(8) + data[24:])  # revision 0
