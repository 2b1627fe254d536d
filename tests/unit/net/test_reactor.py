"""The reactor: what one connection does, or does not do, is no other connection's business."""

from __future__ import annotations

import contextlib
import functools
import resource
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from holdfast.errors import PeerViolation, Unavailable, UsageError
from holdfast.net import reactor as module
from holdfast.net.address import Address
from holdfast.net.reactor import Reactor, ReactorConnection, Timer, tune
from holdfast.testing.clock import ManualClock
from tests.unit.net.reactor_server import (
    LOOPBACK,
    SOON,
    Recorder,
    Server,
    drain,
    echo,
    held_port,
    read,
    serving,
)

BIG = 8 * 1024 * 1024  # more than the kernel buffers for a peer that does not read


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def fail(_: bytes) -> None:
    raise ZeroDivisionError("a bug")


# Serving.


def test_what_arrives_is_handed_over_and_what_is_sent_arrives(server: Server) -> None:
    sock, handler = server.connect()
    with sock:
        assert handler.connection.peer == str(Address(*sock.getsockname()))
        echo(sock)
        assert handler.received_bytes.get_nowait() == b"hello"
    assert handler.reason() == "the peer closed the connection"
    assert handler.connection.closed_by_peer


def test_many_are_served_at_once(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(server.connect()[0]) for _ in range(200)]
        for number, sock in enumerate(socks):
            sock.sendall(b"%d" % number)
        for number, sock in enumerate(socks):
            assert read(sock, len(b"%d" % number)) == b"%d" % number


def test_more_than_the_kernel_takes_is_queued_and_then_told_as_drained(server: Server) -> None:
    sock, handler = server.connect()
    drained = threading.Event()
    handler.connection.on_drained = drained.set
    waiting: list[int] = []

    def send() -> None:
        handler.connection.send(bytes(BIG))
        handler.connection.send(b"end")
        waiting.append(handler.connection.unsent())

    with sock:
        server.on_thread(send)
        assert waiting[0] > 3
        assert not drained.is_set()
        data = read(sock, BIG + 3)
        assert len(data) == BIG + 3
        assert data.endswith(b"\0end")
        assert drained.wait(SOON)
        server.on_thread(lambda: waiting.append(handler.connection.unsent()))
        assert waiting[1] == 0
        echo(sock)  # it is read from again


def test_a_reset_is_told(server: Server) -> None:
    sock, handler = server.connect()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    assert handler.reason() == "receiving failed: Connection reset by peer"


def test_sending_to_a_peer_that_is_gone_closes_the_connection(server: Server) -> None:
    sock, handler = server.connect()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def gone() -> None:
        sock.close()
        while handler.closed_for.empty():
            handler.connection.send(b"x")

    server.on_thread(gone)
    assert handler.reason().startswith("sending failed: ")


# RE-1: a handler's error is its own connection's end.


def test_an_error_of_ours_closes_the_connection_and_gives_the_reason(server: Server) -> None:
    def object_to(_: bytes) -> None:
        raise PeerViolation("not like this")

    (sock, handler), (other, _) = server.connect(), server.connect()
    handler.act = object_to
    with sock, other:
        sock.sendall(b"x")
        assert handler.reason() == "not like this"
        assert sock.recv(1) == b""
        echo(other)


def test_a_bug_in_a_handler_closes_its_connection_only(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    (sock, handler), (other, _) = server.connect(), server.connect()
    handler.act = fail
    with sock, other:
        sock.sendall(b"x")
        assert handler.reason() == "internal error"
        echo(other)
    assert "a handler failed; its connection from 127.0.0.1:" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_bug_while_closing_harms_no_other_connection(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    (sock, handler), (other, _) = server.connect(), server.connect()
    handler.at_close = lambda: fail(b"")
    with other:
        sock.close()
        handler.reason()
        echo(other)
    assert "a handler failed while closing" in caplog.text


def test_a_bug_in_making_a_handler_harms_no_other_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    fails = [True]

    def make(connection: ReactorConnection) -> Recorder:
        if fails.pop():
            raise ZeroDivisionError("a bug")
        fails.append(False)
        return server.make(connection)

    fragile = server.reactor.listen(LOOPBACK, make)
    server.reactor.start()
    try:
        with socket.create_connection(fragile, timeout=SOON) as sock:
            assert sock.recv(1) == b""
        fails.append(False)
        with socket.create_connection(fragile, timeout=SOON) as sock:
            echo(sock)
    finally:
        server.reactor.close()
    assert "a connection from 127.0.0.1 could not be served" in caplog.text


def test_bugs_in_callbacks_do_not_stop_the_reactor(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    sock, handler = server.connect()
    with sock:
        handler.connection.on_drained = lambda: fail(b"")
        server.reactor.call_soon(lambda: fail(b""))
        server.on_thread(lambda: server.reactor.call_later(0.0, lambda: fail(b"")))
        server.on_thread(lambda: handler.connection.send(bytes(BIG)))
        assert len(read(sock, BIG)) == BIG
        echo(sock)
    assert caplog.text.count("a callback of reactor test-reactor failed") == 3


# RE-2 and RE-6: peers that do not read.


def test_a_peer_that_does_not_read_is_dropped_at_the_cap_and_others_are_served(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OUTPUT_BYTES_MAX", BIG)
    (slow, lazy), (quick, other) = server.connect(), server.connect()
    piece = bytes(1 << 20)
    with slow, quick:
        sent = 0

        def send_both() -> None:
            lazy.connection.send(piece)
            other.connection.send(piece)

        while lazy.closed_for.empty():
            server.on_thread(send_both)
            sent += len(piece)
            assert len(read(quick, len(piece))) == len(piece)
        assert BIG < sent < 20 * BIG
        reason = lazy.reason()
        assert reason.startswith("the peer left ")
        assert reason.endswith(" bytes unread")
        server.on_thread(lambda: lazy.connection.send(piece))  # the peer is gone: no error
        assert lazy.connection.unsent() == 0
        echo(quick)


def test_closing_sends_what_is_queued_first(server: Server) -> None:
    sock, handler = server.connect()

    def leave() -> None:
        handler.connection.send(bytes(BIG))
        handler.connection.close("done")
        handler.connection.close("again")
        handler.connection.send(b"too late")

    with sock:
        server.on_thread(leave)
        assert handler.closed_for.empty()
        assert drain(sock) == BIG
    assert handler.reason() == "done"


def test_closing_does_not_wait_for_ever_for_a_peer_that_does_not_read() -> None:
    clock = ManualClock()
    with serving(clock=clock) as server:
        sock, handler = server.connect()

        def leave() -> None:
            handler.connection.send(bytes(BIG))
            handler.connection.close("done")

        with sock:
            server.on_thread(leave)
            assert handler.closed_for.empty()
            clock.advance(module.FLUSH_WITHIN_S)
            server.on_thread(lambda: None)
            assert handler.reason() == "done"
            assert drain(sock) < BIG


def test_a_paused_connection_receives_nothing_until_its_output_has_left(server: Server) -> None:
    (sock, handler), (other, _) = server.connect(), server.connect()
    seen: list[int] = []
    connection = handler.connection

    def send_and_pause(_: bytes) -> None:
        connection.send(bytes(BIG))
        connection.pause()
        connection.send(b"end")  # does not end the pause

    def resumed() -> None:
        seen.append(handler.received_bytes.qsize())
        connection.on_drained = None

    handler.act = send_and_pause
    connection.on_drained = resumed
    with sock, other:
        sock.sendall(b"first")
        assert handler.received_bytes.get(timeout=SOON) == b"first"
        handler.act = connection.send
        sock.sendall(b"second")
        for _ in range(3):
            echo(other)
            assert handler.received_bytes.empty()
        assert len(read(sock, BIG + 3)) == BIG + 3
        assert handler.received_bytes.get(timeout=SOON) == b"second"
        assert read(sock, 6) == b"second"
        assert seen == [0]
        server.on_thread(connection.pause)  # nothing is queued: nothing would end it
        echo(sock)


# RE-3: closed once, and nothing after it.


def test_nothing_is_received_after_close_though_output_is_still_queued(server: Server) -> None:
    sock, handler = server.connect()

    def leave(_: bytes) -> None:
        handler.connection.send(bytes(BIG))
        handler.connection.close("heard enough")
        handler.connection._read()  # as if this batch of events held another one for it

    handler.act = leave
    with sock:
        sock.sendall(b"first")
        assert handler.received_bytes.get(timeout=SOON) == b"first"
        sock.sendall(b"second")
        drain(sock)  # perhaps not all: unread input makes the kernel reset the connection
    assert handler.reason() == "heard enough"
    assert handler.received_bytes.empty()


def test_closing_twice_and_while_closing_is_told_once(server: Server) -> None:
    sock, handler = server.connect()

    def close() -> None:
        handler.connection.close("again")

    def close_twice(_: bytes) -> None:
        handler.connection.close("first")
        close()

    handler.act = close_twice
    handler.at_close = close
    with sock:
        sock.sendall(b"x")
        assert handler.reason() == "first"
        assert sock.recv(1) == b""
        server.on_thread(close)
    server.on_thread(lambda: None)
    assert handler.closed_for.empty()


# RE-4: the end.


def test_closing_the_reactor_ends_thousands_of_connections() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(2000, (soft - 200) // 2)
    with serving() as server, contextlib.ExitStack() as stack:
        made = [server.connect() for _ in range(number)]
        for sock, _ in made:
            stack.enter_context(sock)
        for _ in range(3):
            server.reactor.close()
        assert {handler.reason() for _, handler in made} == {"the server is closing"}
        assert all(sock.recv(1) == b"" for sock, _ in made)
        assert "test-reactor" not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.address)


def test_a_reactor_that_never_started_can_be_closed() -> None:
    server = Server()
    server.reactor.close()
    server.reactor.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address)


def test_a_reactor_that_got_no_thread_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    server = Server()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable, match="new thread"):
            server.reactor.start()
    server.reactor.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address)


def test_a_reactor_can_be_closed_from_its_own_thread(server: Server) -> None:
    sock, handler = server.connect()
    with sock:
        server.reactor.call_soon(server.reactor.close)
        assert handler.reason() == "the server is closing"


def test_what_is_asked_for_after_the_end_does_not_happen(server: Server) -> None:
    server.reactor.close()
    server.reactor.call_soon(lambda: pytest.fail("too late"))


def test_closing_does_not_wait_for_ever_for_a_handler_that_blocks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLOSE_WITHIN_S", 0.05)
    release, blocked = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        release.wait(SOON)

    with serving() as server:
        server.reactor.call_soon(block)
        blocked.wait(SOON)
        server.reactor.close()
        release.set()
    assert "reactor test-reactor did not end within 0.05 s" in caplog.text


# RE-5: no descriptors left.

OUT_OF_DESCRIPTORS = """
import logging, os, queue, resource, socket, threading
from holdfast.net import reactor as module
from holdfast.net.address import Address

selects = 0

class Counting(module.Poller):
    def wait(self, seconds):
        global selects
        selects += 1
        return super().wait(seconds)

class Echo:
    def __init__(self, connection):
        self.received = connection.send
    def closed(self, reason):
        pass

module.Poller = Counting
module.ACCEPT_PAUSE_S = 0.01
module.COMPLAIN_EVERY_S = 3600.0
logging.basicConfig(format="%(message)s")
reactor = module.Reactor("test")
pauses = queue.Queue()
pause = reactor._pause_accepting

def note(*args):
    pause(*args)
    pauses.put(selects)

reactor._pause_accepting = note
address = reactor.listen(Address("127.0.0.1", 0), Echo)
clients = [socket.socket() for _ in range(10)]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
filling = []
try:
    while True:
        filling.append(os.dup(0))
except OSError:
    pass
for client in clients:
    client.settimeout(30)
    client.connect(address)
reactor.start()
seen = [pauses.get(timeout=30) for _ in range(20)]
print("selects for each pause:", max(b - a for a, b in zip(seen, seen[1:])))
for fd in filling:
    os.close(fd)
for client in clients:
    client.sendall(b"x")
    assert client.recv(1) == b"x"
    client.close()
reactor.close()
print("served", len(clients))
"""


def test_running_out_of_descriptors_pauses_accepting_and_heals() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_DESCRIPTORS],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    # One for the connection that waits, one for the end of the pause: no spinning.
    assert done.stdout.splitlines() == ["selects for each pause: 2", "served 10"]
    assert done.stderr.splitlines() == ["cannot accept connections for now: Too many open files"]


# Timers and callbacks.


def test_timers_fire_when_they_are_due_in_order() -> None:
    clock = ManualClock()
    fired: list[str] = []
    with serving(clock=clock) as server:

        def schedule() -> None:
            for delay, name in ((3.0, "c"), (1.0, "a"), (2.0, "b1"), (2.0, "b2")):
                server.reactor.call_later(delay, functools.partial(fired.append, name))

        server.on_thread(schedule)
        assert fired == []
        clock.advance(1.0)
        server.on_thread(lambda: None)
        assert fired == ["a"]
        clock.advance(5.0)
        server.on_thread(lambda: None)
        assert fired == ["a", "b1", "b2", "c"]


def test_a_timer_wakes_the_thread(server: Server) -> None:
    fired = threading.Event()
    server.on_thread(lambda: server.reactor.call_later(0.01, fired.set))
    assert fired.wait(SOON)


def test_a_cancelled_timer_does_not_fire_and_keeps_nothing() -> None:
    clock = ManualClock()
    fired: list[str] = []
    timers: list[Timer] = []

    class Heavy:
        def fire(self) -> None:
            fired.append("heavy")

    gone: list[weakref.ref[Heavy]] = []
    with serving(clock=clock) as server:

        def schedule() -> None:
            heavy = Heavy()
            gone.append(weakref.ref(heavy))
            timers.append(server.reactor.call_later(1.0, heavy.fire))
            # The first cancels the second, though both are due.
            server.reactor.call_later(1.0, lambda: second.cancel())  # noqa: PLW0108
            second = server.reactor.call_later(1.0, lambda: fired.append("second"))

        server.on_thread(schedule)
        timers[0].cancel()
        timers[0].cancel()
        assert timers[0].cancelled
        assert gone[0]() is None  # what a timer held must not stay until it would be due
        clock.advance(1.0)
        server.on_thread(lambda: None)
        assert fired == []


def test_cancelled_timers_do_not_pile_up() -> None:
    with serving(clock=ManualClock()) as server:
        kept: list[Timer] = []

        def schedule() -> None:
            for number in range(20_000):
                timer = server.reactor.call_later(3600.0, lambda: None)
                if number % 100:
                    timer.cancel()
                else:
                    kept.append(timer)

        server.on_thread(schedule)
        assert len(server.reactor._timers) <= 1024
        held = {entry[2] for entry in server.reactor._timers}
        assert held.issuperset(kept)


def test_a_callback_that_reschedules_itself_does_not_starve_others() -> None:
    """Neither a timer without delay, on a clock that stands still, nor a callback."""
    with serving(clock=ManualClock()) as server:

        def timer() -> None:
            server.reactor.call_later(0.0, timer)

        def callback() -> None:
            server.reactor.call_soon(callback)

        server.on_thread(timer)
        server.reactor.call_soon(callback)
        sock, _ = server.connect()
        with sock:
            echo(sock)


def test_callbacks_of_many_threads_run_once_each_on_the_reactors_thread(server: Server) -> None:
    ran: list[tuple[int, int, int]] = []
    each, givers = 500, 8

    def note(name: int, number: int) -> None:
        ran.append((name, number, threading.get_ident()))

    def give(name: int) -> None:
        for number in range(each):
            server.reactor.call_soon(functools.partial(note, name, number))

    threads = [threading.Thread(target=give, args=(name,)) for name in range(givers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    server.on_thread(lambda: None)
    assert len({ident for _, _, ident in ran} - {threading.get_ident()}) == 1
    for name in range(givers):
        assert [number for giver, number, _ in ran if giver == name] == list(range(each))


# RE-7: forks.

FORKING_SERVER = """
import os
from tests.unit.net.reactor_server import echo, serving

with serving() as server:
    print(server.address.port, flush=True)
    os.read(0, 1)
    if os.fork() == 0:
        server.reactor.close()  # nothing is left to close
        with serving() as another:  # a child may have a reactor of its own
            echo(another.connect()[0])
        print("child", flush=True)
        os.read(0, 1)  # lives on until its input ends
        os._exit(0)
    os.wait()
"""


def test_what_a_reactor_served_ends_with_its_process_though_a_child_lives_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORKING_SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        try:
            address = ("127.0.0.1", int(parent.stdout.readline()))
            with socket.create_connection(address, timeout=SOON) as sock:
                echo(sock)
                parent.stdin.write("x")
                parent.stdin.flush()
                assert parent.stdout.readline() == "child\n"
                echo(sock)  # the parent's goes on
                parent.kill()
                parent.wait(SOON)
                assert drain(sock) == 0  # it ends
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, timeout=SOON)
        finally:
            parent.kill()
            parent.stdin.close()  # the child ends
            parent.stdout.read()


# Binding (X1).


def test_a_busy_port_is_one_clear_line(server: Server) -> None:
    reactor = Reactor("another")
    with pytest.raises(UsageError) as caught:
        reactor.listen(server.address, Recorder)
    reactor.close()
    assert str(caught.value) == f"cannot listen on {server.address}: Address already in use"


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("203.0.113.1", "Cannot assign requested address"),
        ("nowhere.invalid", "[Nn]ame"),
        ("a..b", "not a host name"),
        ("x" * 64, "not a host name"),
        ("", "[Nn]ame|No address"),
    ],
)
def test_an_address_that_is_not_ours_is_one_clear_line(host: str, why: str) -> None:
    reactor = Reactor("test-reactor")
    try:
        with pytest.raises(UsageError, match=f"cannot listen on {host}:0: .*({why})"):
            reactor.listen(Address(host, 0), Recorder)
    finally:
        reactor.close()


def test_exactly_the_given_address_is_bound() -> None:
    with held_port() as port, serving(Address("127.0.0.2", port)) as server:
        sock, _ = server.connect()
        with sock:
            echo(sock)
        for host in ("127.0.0.1", "127.0.0.3"):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, port))


def test_ipv6_loopback_is_that_alone() -> None:
    try:
        probe = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    probe.close()
    with held_port() as port, serving(Address("::1", port)) as server:
        assert str(server.address) == f"[::1]:{port}"
        sock, handler = server.connect()
        with sock:
            echo(sock)
            assert handler.connection.peer == f"[::1]:{sock.getsockname()[1]}"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_an_idle_socket_shows_signs_of_life() -> None:
    with socket.socket() as sock:
        tune(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    tune(sock)  # which is closed: its next use shows that
