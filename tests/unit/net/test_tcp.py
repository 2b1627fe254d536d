"""Connecting: each step is named when it fails, with the address; and what only TCP has."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, PeerViolation, Refused, Step, Unavailable
from holdfast.net import auth, tcp
from holdfast.net.address import Address
from holdfast.net.auth import NONCE_BYTES, ServerHandshake, derive_key
from holdfast.net.frames import encode_frame
from holdfast.net.tcp import TcpTransport, connect, open_socket, resolve

KEY = derive_key(b"a secret that only two know", "test")
SOON = 30.0


def within(seconds: float = SOON) -> Deadline:
    return Deadline.after(seconds)


@contextlib.contextmanager
def serving(act: Callable[[socket.socket], None], host: str = "127.0.0.1") -> Iterator[Address]:
    """Serve one connection by `act`, which is called on a thread with the accepted socket."""
    with socket.create_server((host, 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError):
                act(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Address(host, listener.getsockname()[1])
        finally:
            thread.join(SOON)


def say(data: bytes) -> Callable[[socket.socket], None]:
    """Say something, then wait until the peer hangs up."""

    def act(peer: socket.socket) -> None:
        peer.sendall(data)
        while peer.recv(4096):
            pass

    return act


def shake(key: bytes = KEY, extra: bytes = b"") -> Callable[[socket.socket], None]:
    """Shake hands as a server does, with what follows in the same write as the verdict."""

    def act(peer: socket.socket) -> None:
        machine = ServerHandshake(key, os.urandom(NONCE_BYTES))
        try:
            while not machine.done:
                answer = machine.receive(peer.recv(4096))
                peer.sendall(answer + extra if machine.done else answer)
        except HoldfastError:
            peer.sendall(machine.farewell)
        while peer.recv(4096):
            pass

    return act


@pytest.fixture
def closed_port() -> Iterator[Address]:
    """An address that is taken, so that no other process gets it, without a listener."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield Address(*sock.getsockname())


# Name resolution.


@pytest.mark.parametrize(
    "host", ["nowhere.invalid", "0.nowhere.invalid", "a..b", "x" * 64, "999.1.1.1"]
)
def test_a_name_that_does_not_resolve(host: str) -> None:
    with pytest.raises(Unavailable, match=f"cannot resolve '{host}': ") as caught:
        connect(Address(host, 29400), KEY, within())
    assert caught.value.step is Step.RESOLVE
    assert caught.value.address == f"{host}:29400"


@pytest.mark.parametrize("host", ["name", "0.name"])
def test_a_name_server_that_does_not_answer(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's resolver waits as long as it likes; we do not."""
    answer = threading.Event()

    def never(*_: object, flags: int = 0, **__: object) -> object:
        if not flags & socket.AI_NUMERICHOST:
            answer.wait(SOON)
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    try:
        with pytest.raises(Unavailable, match="no answer in time") as caught:
            resolve(Address(host, 1), within(0.05))
    finally:
        answer.set()
    assert caught.value.step is Step.RESOLVE


def test_a_name_server_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "RESOLVE_WITHIN_S", 0.05)
    answer = threading.Event()

    def slow(_: Address, flags: int) -> list[object]:
        if not flags:
            answer.wait(SOON)
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(tcp, "_look_up", slow)
    try:
        with pytest.raises(Unavailable, match="cannot resolve 'name': no answer in time"):
            resolve(Address("name", 1), Deadline(None))
    finally:
        answer.set()


def test_a_number_needs_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", None)
    assert resolve(Address("127.0.0.1", 1), within()) == [(socket.AF_INET, ("127.0.0.1", 1))]
    assert resolve(Address("::1", 1), within()) == [(socket.AF_INET6, ("::1", 1, 0, 0))]


def test_a_name_of_several_addresses_is_tried_until_one_answers(
    monkeypatch: pytest.MonkeyPatch, closed_port: Address
) -> None:
    with serving(say(b"")) as address:
        both = [(socket.AF_INET, tuple(closed_port)), (socket.AF_INET, tuple(address))]
        monkeypatch.setattr(tcp, "resolve", lambda *_: both)
        with open_socket(Address("host", 1), within()) as sock:
            assert sock.getpeername() == tuple(address)


# The TCP connection.


def test_a_port_without_a_listener(closed_port: Address) -> None:
    with pytest.raises(Unavailable, match="Connection refused") as caught:
        connect(closed_port, KEY, within())
    assert caught.value.step is Step.TCP
    assert caught.value.address == str(closed_port)
    assert str(closed_port) in str(caught.value)


def test_an_address_that_swallows_everything() -> None:
    """A full backlog drops the packets of new clients, as a firewall does."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = Address(*listener.getsockname())
        for _ in range(4):
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(tuple(address))
        assert select.select([listener], [], [], SOON)[0]  # the first of them has come
        with pytest.raises(Unavailable, match="no answer in time") as caught:
            connect(address, KEY, within(0.2))
    assert caught.value.step is Step.TCP
    assert caught.value.address == str(address)


def test_a_deadline_that_has_passed_is_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())
        with pytest.raises(Unavailable, match="no answer in time") as caught:
            connect(address, KEY, within(0.0))
    assert caught.value.step is Step.TCP


def test_running_out_of_descriptors_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", none_left)
    with pytest.raises(Unavailable, match="Too many open files") as caught:
        open_socket(Address("127.0.0.1", 1), within())
    assert caught.value.step is Step.TCP


SELF_CONNECT = """
import fcntl, socket, struct
from holdfast.clock import Deadline
from holdfast.errors import Unavailable
from holdfast.net.address import Address
from holdfast.net.tcp import open_socket

with socket.socket() as sock:  # bring the loopback interface up
    fcntl.ioctl(sock, 0x8914, struct.pack("16sh22x", b"lo", 1))
with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
    file.write("40000 40000")
with socket.socket() as sock:  # a plain socket connects to itself here
    sock.connect(("127.0.0.1", 40000))
    assert sock.getsockname() == sock.getpeername()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
for _ in range(3):
    try:
        print(open_socket(Address("127.0.0.1", 40000), Deadline.after(10)))
    except Unavailable as error:
        print(error.step.name, error)
socket.create_server(("127.0.0.1", 40000)).close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have a network of its own")
def test_a_socket_does_not_connect_to_itself() -> None:
    """Else a client that waits for a server on its own host would take its port."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", SELF_CONNECT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.stderr.startswith("unshare:"):
        pytest.skip(f"this system gives no network of its own: {done.stderr.strip()}")
    assert done.stderr == ""
    refused = "TCP cannot connect to 127.0.0.1:40000: Connection refused"
    assert done.stdout.splitlines() == [refused] * 3


# The handshake.


def test_a_peer_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "HANDSHAKE_WITHIN_S", 0.05)
    with serving(say(b"")) as address:
        with pytest.raises(Unavailable, match="the server is silent") as caught:
            connect(address, KEY, within())
        assert caught.value.step is Step.HANDSHAKE
        assert caught.value.address == str(address)


def test_a_peer_that_hangs_up() -> None:
    with serving(lambda peer: None) as address:
        with pytest.raises(Unavailable) as caught:
            connect(address, KEY, within())
        assert caught.value.step is Step.HANDSHAKE
        assert caught.value.address == str(address)


def test_a_peer_that_resets() -> None:
    def reset(peer: socket.socket) -> None:
        peer.recv(1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with serving(reset) as address:
        with pytest.raises(Unavailable, match="handshake with") as caught:
            connect(address, KEY, within())
        assert caught.value.step is Step.HANDSHAKE


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "b'HTTP/1.1 400 Bad'"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "b'SSH-2.0-OpenSSH_'"),
        (b"-ERR unknown command\r\n", "b'-ERR unknown com'"),
        (b"\x15\x03\x01\x00\x02\x02\x46", r"b'\x15\x03\x01\x00\x02\x02F'"),
    ],
)
def test_a_peer_that_speaks_something_else(answer: bytes, shown: str) -> None:
    with serving(say(answer)) as address:
        with pytest.raises(PeerViolation) as caught:
            connect(address, KEY, within())
        assert caught.value.step is Step.HANDSHAKE
        assert caught.value.address == str(address)
        assert str(caught.value) == (
            f"handshake with {address}: the server does not speak holdfast: it answered {shown}"
        )


def test_a_peer_that_trickles_does_not_stretch_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "HANDSHAKE_WITHIN_S", 0.05)
    stop = threading.Event()

    def trickle(peer: socket.socket) -> None:
        for byte in b"HFST\1\0":
            peer.sendall(bytes((byte,)))
        stop.wait(SOON)

    with serving(trickle) as address:
        try:
            with pytest.raises(Unavailable, match="the server is silent"):
                connect(address, KEY, within())
        finally:
            stop.set()


def test_a_peer_with_another_secret() -> None:
    with serving(shake(derive_key(b"another secret of others", "test"))) as address:
        with pytest.raises(Refused, match="the server refused our secret") as caught:
            connect(address, KEY, within())
        assert caught.value.step is Step.SECRET
        assert caught.value.address == str(address)
        assert str(address) in str(caught.value)


def test_a_peer_of_another_version() -> None:
    hello = auth.MAGIC + bytes((auth.VERSION + 1, 1)) + bytes(NONCE_BYTES)
    with serving(say(hello)) as address:
        with pytest.raises(PeerViolation, match="speaks version 2 of the protocol") as caught:
            connect(address, KEY, within())
        assert caught.value.step is Step.VERSION
        assert caught.value.address == str(address)


def test_a_good_handshake_gives_a_transport_with_what_came_early() -> None:
    with serving(shake(extra=encode_frame(b"early") + encode_frame(b"bird")[:5])) as address:
        transport = connect(address, KEY, within())
        assert transport.peer == str(address)
        assert transport.receive(0.0) == [b"early"]
        transport.close()


def test_a_broken_frame_right_after_the_handshake_is_a_violation() -> None:
    with serving(shake(extra=b"\xff\xff\xff\xff")) as address, pytest.raises(PeerViolation):
        connect(address, KEY, within())  # leaves no open socket: the leak check looks


# What only TCP has.


@pytest.fixture
def wire() -> Iterator[tuple[TcpTransport, socket.socket]]:
    """A transport and the bare socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    transport = TcpTransport(near, "far")
    yield transport, far
    transport.close()
    far.close()


def test_a_broken_frame_is_a_violation(wire: tuple[TcpTransport, socket.socket]) -> None:
    transport, far = wire
    far.sendall(b"\x80\0\0\0")
    with pytest.raises(PeerViolation):
        transport.receive(SOON)


def test_half_a_frame_is_waited_for(wire: tuple[TcpTransport, socket.socket]) -> None:
    transport, far = wire
    frame = encode_frame(b"whole")
    far.sendall(frame[:6])
    assert transport.receive(SOON) == []
    far.sendall(frame[6:])
    assert transport.receive(SOON) == [b"whole"]


def test_a_transport_spins_before_it_sleeps_where_that_pays(
    wire: tuple[TcpTransport, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, far = wire
    monkeypatch.setattr(tcp, "SPINS", 10**9)
    frame = encode_frame(b"whole")
    transport._spin.now = True
    far.sendall(frame[:6])
    threading.Timer(0.01, far.sendall, [frame[6:]]).start()
    assert transport.receive(0.0) == [b"whole"]  # it does not sleep
    assert transport._spin.now


def test_a_transport_that_spun_in_vain_sleeps(
    wire: tuple[TcpTransport, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, far = wire
    monkeypatch.setattr(tcp, "SPINS", 3)
    transport._spin.now = True
    threading.Timer(0.05, far.sendall, [encode_frame(b"late")]).start()
    assert transport.receive(SOON) == [b"late"]
    assert not transport._spin.now


def test_a_connection_that_ends_while_its_transport_spins(
    wire: tuple[TcpTransport, socket.socket],
) -> None:
    transport, far = wire
    transport._spin.now = True
    far.close()
    with pytest.raises(Unavailable, match="the peer closed the connection"):
        transport.receive(SOON)


def test_waiting_long_is_waiting_in_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "_TICK_S", 0.01)
    one, other = socket.socketpair()
    with other:
        transport = TcpTransport(one, "far")
        assert transport.receive(3600.0) == []  # the caller looks round and comes back
        transport.close()


def test_signals_do_not_stretch_a_tick(
    wire: tuple[TcpTransport, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, far = wire
    monkeypatch.setattr(tcp, "_TICK_S", 0.1)
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    giving_up = threading.Timer(SOON, far.sendall, [encode_frame(b"too late")])
    giving_up.start()
    try:
        assert transport.receive(SOON) == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        giving_up.cancel()
        giving_up.join()


def test_a_peer_that_does_not_read_is_given_up_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp, "_TICK_S", 0.01)
    one, other = socket.socketpair()
    with other:
        transport = TcpTransport(one, "far")
        with pytest.raises(Unavailable, match="connection to far lost: the peer does not read"):
            transport.send(bytes(16 * 1024 * 1024), within(0.05))
        transport.close()


def test_a_send_does_not_outlast_a_deadline_shorter_than_the_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp, "_TICK_S", 3600.0)
    one, other = socket.socketpair()
    with other:
        transport = TcpTransport(one, "far")
        with pytest.raises(Unavailable, match="connection to far lost: the peer does not read"):
            transport.send(bytes(16 * 1024 * 1024), within(0.05))
        with pytest.raises(Unavailable, match="connection to far lost: the peer does not read"):
            transport.send(bytes(16 * 1024 * 1024), within(0.0))
        transport.close()
        with pytest.raises(Unavailable, match="connection to far lost: "):
            transport.send(b"x", within())


def test_two_peers_that_send_first_do_not_wait_for_each_other(
    wire: tuple[TcpTransport, socket.socket],
) -> None:
    transport, far = wire
    peer = TcpTransport(far, "near")
    payloads = [b"%d" % n + bytes(4 * 1024 * 1024) for n in range(4)]  # more than buffers take

    got: dict[str, list[bytes]] = {"far": [], "near": []}

    def send_then_receive(one: TcpTransport) -> None:
        for payload in payloads:
            one.send(payload, within())
        while len(got[one.peer]) < len(payloads):
            got[one.peer] += one.receive(SOON)

    thread = threading.Thread(target=send_then_receive, args=(peer,))
    thread.start()
    send_then_receive(transport)
    thread.join(SOON)
    assert got == {"far": payloads, "near": payloads}


@pytest.mark.parametrize(
    ("last_words", "why"), [(b"\xff" * 4, "frame"), (b"", "the peer closed the connection")]
)
def test_a_peer_that_ends_while_it_is_sent_to(
    wire: tuple[TcpTransport, socket.socket], last_words: bytes, why: str
) -> None:
    transport, far = wire
    far.sendall(last_words)
    if not last_words:
        far.shutdown(socket.SHUT_WR)
    with pytest.raises(Unavailable, match=f"connection to far lost: .*{why}"):
        transport.send(bytes(32 * 1024 * 1024), within())


def test_a_reset_is_told(wire: tuple[TcpTransport, socket.socket]) -> None:
    transport, far = wire
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    with pytest.raises(Unavailable, match="Connection reset by peer"):
        transport.receive(SOON)


def test_releasing_a_copy_leaves_the_connection_alone() -> None:
    """What a forked child does with the transport that it inherited."""
    one, other = socket.socketpair()
    with one.dup() as parents, other:
        TcpTransport(one, "far").release()
        parents.sendall(b"goes on")
        assert other.recv(100) == b"goes on"
