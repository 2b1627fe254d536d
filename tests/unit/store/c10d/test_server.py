"""The store_server for torch's clients: live sockets, bad peers, slow peers, bounds, and noise."""

from __future__ import annotations

import os
import queue
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import Unavailable, UsageError
from holdfast.net.address import Address
from holdfast.net.owner import Ends
from holdfast.observe.events import (
    ConnectionClosed,
    ConnectionOpened,
    ConnectionRefused,
    ServerStarted,
    ServerStopped,
)
from holdfast.store.c10d import messages as c10d
from holdfast.store.c10d import server as c10d_server
from holdfast.store.c10d.server import EARLY_BYTES_MAX, Answer, C10dServer
from holdfast.store.c10d.space import ITEM_BYTES
from holdfast.store.c10d.wire import READY, encode_bytes, encode_i64, encode_request
from tests.unit.net.reactor_server import held_port
from tests.unit.store.c10d.peers import HELLO, LOOPBACK, WITHIN_S, Peer, QueueSink
from tests.unit.store.c10d.vectors import VECTORS

MIB = 1 << 20


@pytest.fixture
def sink() -> QueueSink:
    return QueueSink()


@pytest.fixture
def store_server(sink: QueueSink) -> Iterator[C10dServer]:
    with C10dServer(LOOPBACK, sink=sink) as store_server:
        yield store_server


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


# Serving.


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_the_recorded_session_is_answered_as_recorded(store_server: C10dServer, piece: int) -> None:
    with Peer(store_server.address, hello=False) as peer:
        for vector in VECTORS:
            for start in range(0, len(vector.sent), piece):
                peer.socket.sendall(vector.sent[start : start + piece])
            assert peer.read(len(vector.reply)) == vector.reply, vector.what
        peer.sync()


def test_a_whole_session_in_one_send_is_answered_in_order(store_server: C10dServer) -> None:
    with Peer(store_server.address, hello=False) as peer:
        peer.socket.sendall(b"".join(vector.sent for vector in VECTORS))
        expected = b"".join(vector.reply for vector in VECTORS)
        assert peer.read(len(expected)) == expected


def test_a_write_wakes_waiters_on_other_connections(store_server: C10dServer) -> None:
    with (
        Peer(store_server.address) as one,
        Peer(store_server.address) as two,
        Peer(store_server.address) as writer,
    ):
        for waiter in (one, two):
            waiter.say(c10d.Wait((b"/a", b"/b")))
            waiter.sync()
        writer.say(c10d.Set(b"/a", b"1"))
        writer.sync()
        writer.say(c10d.Set(b"/b", b"2"))
        assert one.read(1) == READY
        assert two.read(1) == READY
        one.sync()  # nothing else came


def test_a_waiter_that_hangs_up_is_forgotten(store_server: C10dServer, sink: QueueSink) -> None:
    with Peer(store_server.address) as waiter:
        waiter.say(c10d.Wait((b"/k",)))
        waiter.sync()
    sink.next(ConnectionClosed)
    assert not store_server._space._waits
    assert store_server._space.used == 0


def test_servers_do_not_share_keys(store_server: C10dServer) -> None:
    with (
        C10dServer(LOOPBACK) as other,
        Peer(store_server.address) as here,
        Peer(other.address) as there,
    ):
        here.say(c10d.Set(b"/k", b"here"))
        here.sync()
        assert there.get(b"/k") == b""
        there.say(c10d.Set(b"/k", b"there"))
        there.sync()
        assert here.get(b"/k") == b"here"


# Life and address.


def test_events_tell_of_a_server_and_its_clients(sink: QueueSink) -> None:
    store_server = C10dServer(LOOPBACK, sink=sink)
    with store_server:
        assert str(sink.next(ServerStarted)) == f"serving {store_server.endpoint}"
        with Peer(store_server.address):
            sink.next(ConnectionOpened)
        sink.next(ConnectionClosed)
        with Peer(store_server.address, hello=False) as peer:
            peer.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert peer.rest() == b""
        assert "magic" in str(sink.next(ConnectionRefused))
    sink.next(ServerStopped)
    assert repr(store_server) == f"<C10dServer c10d://{store_server.address}>"


def test_closing_hangs_up_and_frees_the_port() -> None:
    store_server = C10dServer(LOOPBACK)
    store_server.close()  # not started: nothing to do
    store_server.start()
    with Peer(store_server.address) as peer:
        store_server.close()
        store_server.close()
        assert peer.rest() == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(store_server.address, WITHIN_S)
    with C10dServer(store_server.address) as again:
        assert again.address == store_server.address


def test_an_address_in_use_is_a_usage_error(store_server: C10dServer) -> None:
    with pytest.raises(UsageError, match="cannot listen"):
        C10dServer(store_server.address).start()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_other_hosts_need_a_callback_that_vouches_for_them(host: str) -> None:
    with pytest.raises(UsageError, match=r"no authentication.*vouch="):
        C10dServer(Address(host, 0))


def test_exactly_the_given_address_is_bound() -> None:
    with held_port() as port, C10dServer(Address("127.0.0.2", port)) as store_server:
        with Peer(store_server.address) as peer:
            peer.sync()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), WITHIN_S)


# Which connections are admitted.


class Neighbour:
    """Another host, whose agent vouches for connections or does not: this host, in fact."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[tuple[Ends, Answer]] = queue.SimpleQueue()

    def __call__(self, ends: Ends, answer: Answer) -> None:
        self.asked.put((ends, answer))

    def answer(self, peer: Peer, why: str) -> None:
        ends, answer = self.asked.get(timeout=WITHIN_S)
        assert ends == (peer.socket.getsockname(), peer.socket.getpeername())
        answer(why)


@pytest.fixture
def neighbour(monkeypatch: pytest.MonkeyPatch) -> Neighbour:
    monkeypatch.setattr(c10d_server, "judge_owner", lambda ends: None)
    monkeypatch.setattr(c10d_server, "is_loopback", lambda host: False)
    return Neighbour()


@pytest.fixture
def exposed(neighbour: Neighbour, sink: QueueSink) -> Iterator[C10dServer]:
    with C10dServer(LOOPBACK, vouch=neighbour, sink=sink) as store_server:
        yield store_server


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_cd2_another_user_of_this_host_is_refused(
    store_server: C10dServer, sink: QueueSink
) -> None:
    connect = (
        "import os, socket, sys\n"
        "port, hello = int(sys.argv[1]), bytes.fromhex(sys.argv[2])\n"
        "os.setuid(54321)\n"
        "with socket.socket() as sock:\n"
        "    sock.connect(('127.0.0.1', port))\n"
        "    sock.sendall(hello)\n"
        "    sys.exit(len(sock.recv(1)))\n"
    )
    said = encode_request(c10d.Validate()) + encode_request(c10d.Set(b"key", b"planted"))
    command = [sys.executable, "-S", "-c", connect, str(store_server.address.port), said.hex()]
    assert subprocess.run(command, timeout=WITHIN_S, check=False).returncode == 0
    assert "it belongs to user 54321, not to 0" in str(sink.next(ConnectionRefused))
    with Peer(store_server.address) as peer:
        peer.say(c10d.Check((b"key",)))
        assert peer.read(1) == b"\x01"  # it is not there


def test_cd1_a_peer_that_is_gone_when_it_is_judged_is_not_heard(
    store_server: C10dServer, sink: QueueSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c10d_server, "is_connected", lambda sock: False)
    with Peer(store_server.address, hello=False) as peer:
        peer.say(c10d.Validate(), c10d.Ping(1))
        assert peer.rest() == b""
    assert "closed before it was admitted" in str(sink.next(ConnectionRefused))


@pytest.mark.parametrize("error", [OSError(107, "not connected"), Unavailable("not told")])
def test_cd4_where_the_kernel_does_not_tell_no_connection_is_admitted(
    store_server: C10dServer, sink: QueueSink, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(ends: Ends) -> str | None:
        raise error

    monkeypatch.setattr(c10d_server, "judge_owner", fail)
    with Peer(store_server.address, hello=False) as peer:
        peer.say(c10d.Validate(), c10d.Ping(1))
        assert peer.rest() == b""
    assert str(error) in str(sink.next(ConnectionRefused))


def test_cd4_a_loopback_connection_without_an_owner_is_refused(
    store_server: C10dServer, sink: QueueSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c10d_server, "judge_owner", lambda ends: None)
    with Peer(store_server.address, hello=False) as peer:
        peer.say(c10d.Validate(), c10d.Ping(1))
        assert peer.rest() == b""
    assert "no process of this host" in str(sink.next(ConnectionRefused))


def test_cd3_a_connection_that_is_vouched_for_is_admitted(
    exposed: C10dServer, neighbour: Neighbour, sink: QueueSink
) -> None:
    with Peer(exposed.address, hello=False) as peer:
        peer.say(c10d.Validate())
        peer.say(c10d.Ping(1))
        neighbour.answer(peer, "")
        assert peer.read(4) == b"\x01\0\0\0"
        sink.next(ConnectionOpened)
        peer.sync()
    assert neighbour.asked.empty()  # it was asked once


def test_cd3_a_connection_that_is_not_vouched_for_is_refused(
    exposed: C10dServer, neighbour: Neighbour, sink: QueueSink
) -> None:
    with Peer(exposed.address, hello=False) as peer:
        peer.say(c10d.Validate(), c10d.Ping(1))
        neighbour.answer(peer, "it is a stranger's")
        assert peer.rest() == b""
    assert "it is a stranger's" in str(sink.next(ConnectionRefused))


def test_cd3_a_connection_is_refused_at_the_deadline(
    exposed: C10dServer,
    neighbour: Neighbour,
    sink: QueueSink,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(c10d_server, "HANDSHAKE_WITHIN_S", 0.05)
    monkeypatch.setattr(c10d_server, "VOUCH_WITHIN_S", 0.3)
    with Peer(exposed.address, hello=False) as peer:
        peer.say(c10d.Validate(), c10d.Ping(1))
        assert peer.rest() == b""
    assert "no agent vouched for it within 0.3 s" in str(sink.next(ConnectionRefused))
    _, answer = neighbour.asked.get(timeout=WITHIN_S)
    answer("")  # too late, and harmless
    with Peer(exposed.address, hello=False) as peer:
        peer.say(c10d.Validate(), c10d.Ping(1))
        neighbour.answer(peer, "")
        assert peer.read(4) == b"\x01\0\0\0"


def test_cd1_what_comes_before_the_answer_is_bounded(
    exposed: C10dServer, neighbour: Neighbour, sink: QueueSink
) -> None:
    with Peer(exposed.address, hello=False) as peer:
        peer.socket.sendall(bytes(EARLY_BYTES_MAX + 1))
        assert peer.rest() == b""
    assert "before it was admitted" in str(sink.next(ConnectionRefused))
    neighbour.asked.get(timeout=WITHIN_S)
    with Peer(exposed.address, hello=False) as peer:
        peer.socket.sendall(bytes(EARLY_BYTES_MAX))  # no request, as it turns out
        neighbour.answer(peer, "")
        assert peer.rest() == b""


# Bad peers.


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"\x00\xce\xf7\x85\x3d",
        encode_request(c10d.Set(b"/k", b"v")),
        b"\xff" * 4096,
        HELLO + HELLO,
        HELLO + b"\x13",
        HELLO + b"\x01" + u64(8193),
        HELLO + b"\x01" + u64(1) + b"k" + u64(8 * MIB + 1),
        HELLO + b"\x06" + u64(131_073),
        HELLO + encode_request(c10d.Wait((b"/x",))) * 2,
        HELLO + encode_request(c10d.Set(b"/n", b"x")) + encode_request(c10d.Add(b"/n", 1)),
    ],
)
def test_a_violation_ends_its_own_connection_only(store_server: C10dServer, data: bytes) -> None:
    with Peer(store_server.address) as other, Peer(store_server.address, hello=False) as bad:
        other.say(c10d.Set(b"/k", b"v"), c10d.Wait((b"/x",)))
        other.sync()
        bad.socket.sendall(data)
        assert bad.rest() == b""
        assert other.get(b"/k") == b"v"
        other.say(c10d.CancelWait())
        assert other.read(1) == b"\x01"


def test_requests_before_a_violation_are_answered(store_server: C10dServer) -> None:
    with Peer(store_server.address) as peer:
        peer.socket.sendall(encode_request(c10d.Add(b"/n", 1)) + b"\xff")
        assert peer.rest() == encode_i64(1)


@pytest.mark.parametrize("data", [b"", HELLO[:4]])
def test_a_silent_unauthenticated_connection_is_dropped_and_a_silent_client_is_not(
    monkeypatch: pytest.MonkeyPatch, data: bytes, sink: QueueSink
) -> None:
    monkeypatch.setattr(c10d_server, "HANDSHAKE_WITHIN_S", 0.5)
    with (
        C10dServer(LOOPBACK, sink=sink) as store_server,
        Peer(store_server.address, hello=False) as client,
    ):
        client.socket.sendall(HELLO)
        sink.next(ConnectionOpened)
        with Peer(store_server.address, hello=False) as stranger:
            stranger.socket.sendall(data)
            assert stranger.rest() == b""
        assert "silent" in str(sink.next(ConnectionRefused))
        client.sync()  # though it has been silent for longer


def test_too_many_unauthenticated_connections_evict_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(c10d_server, "UNAUTHENTICATED_MAX", 2)
    with C10dServer(LOOPBACK) as store_server, Peer(store_server.address) as client:
        strangers = [Peer(store_server.address, hello=False) for _ in range(3)]
        assert strangers[0].rest() == b""
        for stranger in strangers[1:]:
            stranger.socket.sendall(HELLO)
            stranger.sync()
        client.sync()
        for stranger in strangers:
            stranger.socket.close()


# Slow and greedy peers.


def test_half_requests_delay_no_other_client(store_server: C10dServer) -> None:
    halves = [Peer(store_server.address) for _ in range(20)]
    for number, half in enumerate(halves):
        request = encode_request(c10d.Set(b"/half", b"%d" % number))
        half.socket.sendall(request[: 1 + number % (len(request) - 1)])
    with Peer(store_server.address) as peer:
        peer.say(c10d.Set(b"/k", b"v"))
        assert peer.get(b"/k") == b"v"
        assert peer.get(b"/half") == b""
    for half in halves:
        half.socket.close()


def test_what_half_requests_keep_is_bounded(sink: QueueSink) -> None:
    with (
        C10dServer(LOOPBACK, max_bytes=MIB, sink=sink) as store_server,
        Peer(store_server.address) as peer,
    ):
        peer.say(c10d.Set(b"/k", b"v"))
        peer.sync()
        begun = b"\x01" + encode_bytes(b"/half") + u64(8 * MIB)
        with Peer(store_server.address) as greedy:
            greedy.socket.sendall(begun + b"v" * (2 * MIB))
            assert greedy.rest() == b""
        assert "full" in str(sink.next(ConnectionClosed))
        with Peer(store_server.address) as half:
            half.socket.sendall(begun + b"v" * (MIB // 2))
            half_read(store_server, MIB // 2)
        sink.next(ConnectionClosed)
        assert peer.get(b"/k") == b"v"
        assert store_server._held == 0


def half_read(store_server: C10dServer, size: int) -> None:
    """Return once this much of half requests has arrived; a busy peer is the clock."""
    with Peer(store_server.address) as peer:
        while store_server._held < size:
            peer.sync()


def test_a_full_store_disconnects_only_a_client_that_writes_more() -> None:
    with (
        C10dServer(LOOPBACK, max_bytes=2 * ITEM_BYTES + 200) as store_server,
        Peer(store_server.address) as peer,
    ):
        peer.say(c10d.Set(b"/k", b"v" * 190))
        peer.sync()
        with Peer(store_server.address) as greedy:
            greedy.say(c10d.Set(b"/more", b"v" * 190))
            assert greedy.rest() == b""
        peer.say(c10d.Set(b"/k", b"w" * 190))
        assert peer.get(b"/k") == b"w" * 190
        assert peer.get(b"/more") == b""


def test_a_peer_that_does_not_read_is_dropped(sink: QueueSink) -> None:
    with C10dServer(LOOPBACK, sink=sink) as store_server, Peer(store_server.address) as peer:
        peer.say(c10d.Set(b"/k", b"v" * (8 * MIB)))
        peer.sync()
        with Peer(store_server.address) as deaf:
            deaf.say(*(c10d.Get(b"/k") for _ in range(5000)))  # 40 GB, if all were answered
            assert "unread" in str(sink.next(ConnectionClosed))
        peer.sync()
        assert len(store_server._clients) == 1


# Noise.


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def noise(rng: random.Random) -> bytes:
    """A session that is right, wrong, or was right before it was damaged."""
    vectors = rng.sample(VECTORS[1:], rng.randrange(1, 8))
    data = bytearray(HELLO * rng.choice((0, 1, 1, 1, 2)))
    for vector in vectors:
        data += vector.sent
    match rng.randrange(4):
        case 0:
            data += rng.randbytes(rng.randrange(300))
        case 1:
            for _ in range(rng.randrange(1, 5)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        case 2:
            del data[rng.randrange(len(data)) :]
        case _:
            at = rng.randrange(len(data))
            data[at:at] = data[: rng.randrange(len(data))]
    return bytes(data)


def test_thousands_of_noisy_sessions_harm_no_other_client(sink: QueueSink) -> None:
    rng = random.Random(20_260_101)
    with (
        C10dServer(LOOPBACK, max_bytes=MIB, sink=sink) as store_server,
        Peer(store_server.address) as peer,
    ):
        peer.say(c10d.Set(b"/steady", b"%08d" % 0))
        before = resident_bytes()
        for number in range(4000):
            with Peer(store_server.address, hello=False) as noisy:
                try:
                    noisy.socket.sendall(noise(rng))
                    noisy.socket.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # disconnected already
                noisy.rest()
            if number % 40 == 0:
                assert peer.get(b"/steady") == b"%08d" % (number // 40)
                peer.say(c10d.Set(b"/steady", b"%08d" % (number // 40 + 1)))
        peer.sync()
        assert resident_bytes() - before < 64 * MIB
        assert len(store_server._clients) == 1
        assert not store_server._unauthenticated
        assert store_server._held == 0
        store_server._space.check_invariants()
