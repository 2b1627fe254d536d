"""The callee's side: unauthenticated clients are refused, nothing is left."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import HoldfastError, Overloaded, PeerLost
from holdfast.net.auth import derive_key
from holdfast.rpc.server import listener as server_module
from holdfast.rpc.wire.connection import ConnectionEnded
from holdfast.rpc.wire.hello import Purpose, WorkerHello, decode_welcome
from tests.unit.rpc.server_world import SOON, World, ask, ended, raises
from tests.waiting import until


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


def test_without_a_thread_that_accepts_there_is_no_listening(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.bind(f"{world.where}-2")
        monkeypatch.setattr(server_module, "try_start", lambda *args: False)
        with pytest.raises(Overloaded, match="no thread to be had"):
            world.server.listen(sock)


def test_hanging_up_on_one_caller_leaves_the_others(world: World) -> None:
    connections = [world.open(purpose, "gone") for purpose in Purpose]
    other = world.open(Purpose.DIRECT, "here")
    world.server.hang_up("gone")
    for connection in connections:
        with pytest.raises(ConnectionEnded):
            connection.receive()
    other.send(ask(1))
    assert other.receive().call == 1


def test_hanging_up_ends_a_connection_that_is_being_admitted(world: World) -> None:
    """Proves SR-7: the caller is lost just after its hello was found right."""
    check_hello = world.desk.check_hello

    def check_and_lose(hello: WorkerHello) -> None:
        check_hello(hello)
        world.server.hang_up(hello.incarnation)

    world.desk.check_hello = check_and_lose  # type: ignore[method-assign]
    for purpose in Purpose:
        connection = world.shake()
        connection.send(WorkerHello("w0", 0, "gone", "me", purpose).encode())
        # Its welcome may have been sent before: nothing else is.
        assert raises(lambda: [connection.receive() for _ in range(3)])  # noqa: B023
    until(lambda: not world.server.connections)


def test_a_caller_that_is_refused_is_not_kept(world: World) -> None:
    heard: list[str] = []
    world.server.left = lambda caller: heard.append(caller.incarnation)
    world.desk.refusal = PeerLost("no")
    connection = world.shake()
    connection.send(WorkerHello("w0", 0, "life", "me", Purpose.PIPE).encode())
    assert decode_welcome(connection.receive()) == "no"
    with pytest.raises(ConnectionEnded):
        connection.receive()
    assert not world.server.connections
    until(lambda: heard == ["life"])  # SR-5: it may have been its last pipe


def test_the_owner_is_notified_when_a_caller_has_no_pipe_left(world: World) -> None:
    """Proves SR-5."""
    heard: list[str] = []
    world.server.left = lambda caller: heard.append(caller.incarnation)
    pipe, other = world.open(Purpose.PIPE, "life"), world.open(Purpose.PIPE, "another")
    direct = world.open(Purpose.DIRECT, "life")
    until(lambda: len(world.server.connections) == 3)
    direct.close()
    until(lambda: len(world.server.connections) == 2)
    assert world.server.has_pipe("life")
    assert heard == []
    pipe.close()
    until(lambda: heard == ["life"])
    assert not world.server.has_pipe("life")
    world.server.close()
    assert raises(other.receive)
    until(lambda: not world.server.connections)
    assert heard == ["life"]


def test_closing_closes_every_connection(world: World) -> None:
    connections = [world.open(purpose) for purpose in Purpose]
    stranger = world.connect()
    connections[0].send(ask(1, b"block"))
    world.desk.entered.acquire()
    world.server.close()
    for connection in connections:
        with pytest.raises(ConnectionEnded):
            connection.receive()
    assert ended(stranger)
    with pytest.raises(ConnectionError):
        world.connect()


# Unauthenticated connections.


def test_a_client_without_the_secret_is_refused(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    begun = SYSTEM_CLOCK.monotonic()
    for number in range(20):
        with pytest.raises(HoldfastError):
            world.shake(derive_key(b"a guess, number %d" % number, "rpc"))
        with pytest.raises(HoldfastError):
            world.shake(derive_key(b"a secret that only two know", "store"))
    assert not world.desk.threads
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert 1 <= len(told) <= 2 + SYSTEM_CLOCK.monotonic() - begun  # one a second, not one each
    assert "refused at handshake" in told[0]


PROBES = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00\x00\x00\x85\xffSMB",
    b"HFST" + bytes(4096),
    b"HFST\x01\x00" + bytes(32) + bytes(32),
    b"\0" * 4096,
]


def test_sr1_a_connection_without_a_handshake_is_closed(world: World) -> None:
    world.server.handshake_within_s = 0.2
    rng = random.Random(4)
    for probe in [*PROBES, *(rng.randbytes(rng.randrange(1, 4096)) for _ in range(200))]:
        with closing(world.connect()) as sock:
            try:
                sock.sendall(probe)
            except ConnectionError:
                continue
            assert ended(sock)
    assert not world.desk.threads
    world.server.handshake_within_s = SOON
    assert world.open(Purpose.DIRECT)


def test_sr1_a_silent_or_slow_client_is_disconnected(world: World) -> None:
    world.server.handshake_within_s = 0.2
    silent = world.connect()
    half = world.connect()
    half.sendall(b"HFST\x01\x00")
    assert ended(silent)
    assert ended(half)
    slow = world.connect()
    assert raises(lambda: drip(slow))


def test_a_client_that_sends_no_hello_is_disconnected(world: World) -> None:
    world.server.handshake_within_s = 0.5
    with pytest.raises((ConnectionEnded, HoldfastError)):  # before, where that took too long
        world.shake().receive()


def drip(sock: socket.socket) -> None:
    for byte in b"HFST\x01\x00" + bytes(200):
        sock.sendall(bytes([byte]))
        until(Deadline.after(0.02).passed)


def test_the_oldest_unauthenticated_connection_is_evicted(world: World) -> None:
    """SR-4."""
    waiting = [world.connect() for _ in range(4)]
    until(lambda: len(world.server._strangers) == 4)
    waiting += [world.connect() for _ in range(2)]
    assert all(ended(sock) for sock in waiting[:2])
    until(lambda: len(world.server._strangers) == 4)
    assert world.open(Purpose.DIRECT)


def test_authenticated_connections_do_not_count_as_unauthenticated(world: World) -> None:
    for _ in range(10):
        world.open(Purpose.DIRECT)
    until(lambda: not world.server._strangers)


def test_a_refused_hello_gets_the_reason(world: World) -> None:
    world.desk.refusal = PeerLost("another one has its name now")
    connection = world.shake()
    connection.send(WorkerHello("w0", 0, "life", "me", Purpose.DIRECT).encode())
    assert decode_welcome(connection.receive()) == "another one has its name now"
    with pytest.raises(ConnectionEnded):
        connection.receive()


def test_a_greeting_that_is_none_is_hung_up_on(world: World) -> None:
    connection = world.shake()
    connection.send(ask(1))
    with pytest.raises(ConnectionEnded):
        connection.receive()
    assert not world.desk.threads


def test_accepting_goes_on_after_an_error(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short(socket.socket):
        left = 2

        def accept(self) -> tuple[socket.socket, object]:
            if self.left:
                self.left -= 1
                raise OSError(24, "Too many open files")
            return super().accept()

    monkeypatch.setattr(server_module, "ACCEPT_AGAIN_S", 0.001)
    world.where += "-2"
    sock = Short(socket.AF_UNIX)
    sock.bind(world.where)
    world.server.listen(sock)
    assert world.open(Purpose.DIRECT)
    assert caplog.text.count("Too many open files") == 1  # however many wait
