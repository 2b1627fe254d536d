"""How a process becomes a member, and what it hears if it does not."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator

import pytest

from holdfast.clock import Deadline
from holdfast.errors import StoreUnavailable, Unavailable, UsageError
from holdfast.net.address import Address
from holdfast.net.tcp import TcpTransport
from holdfast.store.raft.messages import TimeoutNow
from holdfast.store.replica import care
from holdfast.store.replica import membership as membership_module
from holdfast.store.replica.care import MemberCare
from holdfast.store.replica.machine import Replica
from holdfast.store.replica.messages import (
    ALIVE,
    ASK,
    Dismissal,
    JoinReply,
    JoinRequest,
    JoinState,
    MemberHello,
    decode_answer,
    encode_first,
    encode_message,
    parts_of,
)
from holdfast.store.server import StoreServer
from tests.unit.store.tcp_parts import LONG_S, dial, new_server, read_frames


@pytest.fixture
def first() -> Iterator[StoreServer]:
    with new_server() as server:
        yield server


def ask(address: Address, frame: bytes) -> bytes | None:
    """Send a first frame; return what comes back, or None if the connection is closed."""
    transport = dial(address)
    try:
        transport.send(frame, Deadline.after(LONG_S))
        return next(read_frames(transport), None)
    finally:
        transport.close()


def test_a_server_joins_by_any_member(first: StoreServer) -> None:
    with new_server() as unused:
        unused.close()
        second, third = new_server(), new_server()
        try:
            second.join((unused.address, first.address), LONG_S)
            third.join((second.address,), LONG_S)
            assert len(third.members) == 3
        finally:
            third.close()
            second.close()


def test_without_a_store_there_it_says_so_at_the_deadline() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        nowhere = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(StoreUnavailable, match="no store at .* in time: cannot connect"):
            new_server().join((nowhere,), 0.3)


def test_a_member_that_cannot_be_reached_is_told(
    first: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemberCare, "is_settled", lambda self, now, hosted: True)
    monkeypatch.setattr(StoreServer, "announced", Address("127.0.0.1", 1))
    with pytest.raises(StoreUnavailable, match="cannot connect to 127.0.0.1:1"):
        new_server().join((first.address,), 1.0)


def test_a_store_with_all_its_members_refuses(
    first: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "MEMBERS_MAX", 1)
    with pytest.raises(UsageError, match="cannot join the store: the store has 1 members"):
        new_server().join((first.address,), LONG_S)


def test_a_connection_for_another_member_is_closed(first: StoreServer) -> None:
    assert ask(first.address, encode_first(MemberHello(1, 2))) is None


def test_a_process_that_is_no_member_is_dismissed_by_the_leader(first: StoreServer) -> None:
    reply = decode_answer(ask(first.address, encode_first(JoinRequest(9, "nowhere:1"))) or b"")
    assert isinstance(reply, JoinReply)
    assert reply.state is JoinState.WAIT
    answer = ask(first.address, encode_first(MemberHello(8, replica_of(first).member)))
    assert isinstance(decode_answer(answer or b""), Dismissal)


@pytest.fixture
def ninth(first: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpTransport]:
    """A connection of member 9 to the server, which takes no member for lost."""
    monkeypatch.setattr(care, "LOST_S", math.inf)
    for _ in range(2):  # announced, then added
        ask(first.address, encode_first(JoinRequest(9, "nowhere:1")))
    transport = dial(first.address)
    hello = MemberHello(9, replica_of(first).member)
    transport.send(encode_first(hello), Deadline.after(LONG_S))
    yield transport
    transport.close()


def replica_of(server: StoreServer) -> Replica:
    machine = server._machine
    assert isinstance(machine, Replica)
    return machine


def test_a_member_is_answered_that_it_is_heard(first: StoreServer, ninth: TcpTransport) -> None:
    deadline = Deadline.after(LONG_S)
    for part in parts_of(encode_message(TimeoutNow(replica_of(first).member, 9, 1))):
        ninth.send(part, deadline)
    ninth.send(ASK, deadline)
    assert next(read_frames(ninth)) == ALIVE


def test_a_member_that_is_removed_while_it_is_connected_is_told(
    first: StoreServer, ninth: TcpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have come back just before its removal was committed."""
    deadline = Deadline.after(LONG_S)
    ninth.send(ASK, deadline)
    assert next(read_frames(ninth)) == ALIVE
    monkeypatch.setattr(Replica, "knows", lambda self, member: member != 9)
    ninth.send(ASK, deadline)
    assert isinstance(decode_answer(next(read_frames(ninth))), Dismissal)


def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(Unavailable):
            new_server().join((address,), 0.3)
