"""What a server keeps of its clients: empty at first, and never shared by two of them."""

from __future__ import annotations

from holdfast.ids import SessionId
from holdfast.store.clients import ClientConnection, ClientSession


def test_two_sessions_share_nothing() -> None:
    one = ClientSession(SessionId(1), floor=1, resumable=True)
    other = ClientSession(SessionId(2), floor=1, resumable=True)
    one.answers[1] = b"answer"
    assert (other.answers, other.parked, other.lingers) == ({}, {}, {})
    assert one != ClientSession(SessionId(1), floor=1, resumable=True, answers={1: b"answer"})


def test_a_connection_begins_without_a_session() -> None:
    connection = ClientConnection(7)
    assert (connection.session, connection.watches) == (None, {})
    assert not connection.congested
    assert not connection.parting
