"""The callee's side: strangers stay out, calls that block hold up nobody, nothing is left."""

from __future__ import annotations

import os
import random
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import HoldfastError, Overloaded, PeerLost
from holdfast.net.address import Address
from holdfast.net.auth import Key, derive_key
from holdfast.net.tcp import shake_hands
from holdfast.rpc.client.blocking import before_block
from holdfast.rpc.server import listener as server_module
from holdfast.rpc.server.listener import Later, Server
from holdfast.rpc.wire.codec import HEADER
from holdfast.rpc.wire.connection import Connection, ConnectionClosed
from holdfast.rpc.wire.hello import Hello, Purpose, decode_welcome
from holdfast.rpc.wire.messages import Kind, Message

KEY = derive_key(b"a secret that only two know", "rpc")
SOON = 20.0


class Desk:
    """Answers with the body it was asked with; some bodies ask for something else."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.later: list[Later] = []
        self.threads: set[int] = set()
        self.refusal: HoldfastError | None = None

    def check_hello(self, hello: Hello) -> None:
        if self.refusal is not None:
            raise self.refusal

    def handle(self, caller: Hello, message: Message, later: Later) -> Message | None:
        answer = Message(Kind.REPLY, message.call, message.body, message.buffers)
        self.threads.add(threading.get_ident())
        match bytes(message.body):
            case b"block":
                self.entered.release()
                assert self.gate.wait(SOON)
            case b"way":
                before_block()
                self.entered.release()
                assert self.gate.wait(SOON)
            case b"later":
                self.later.append(later)
                self.entered.release()
                return None
            case b"large":
                later(Message(Kind.REPLY, message.call, bytes(1 << 16)))
                self.entered.release()
                return None
            case b"note":
                self.entered.release()
                return None
            case b"bug":
                raise AssertionError("a handler must not raise")
        return answer


class World:
    def __init__(self) -> None:
        self.desk = Desk()
        self.where = f"\0holdfast-test-{os.urandom(8).hex()}"
        self.server = self.serve()
        self.socks: list[socket.socket] = []

    def serve(self) -> Server:
        server = Server("test", KEY, self.desk, handshake_within_s=SOON, strangers_max=4)
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(self.where)
        server.listen(sock)
        return server

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        self.socks.append(sock)
        sock.settimeout(SOON)
        sock.connect(self.where)
        return sock

    def shake(self, key: Key = KEY) -> Connection:
        sock = self.connect()
        rest = shake_hands(sock, key, Address("unix", 0), Deadline.after(SOON))
        return Connection(sock, rest)

    def open(self, purpose: Purpose, incarnation: str = "life") -> Connection:
        connection = self.shake()
        connection.send(Hello("w0", 0, incarnation, "me", purpose).encode())
        assert decode_welcome(connection.receive()) == ""
        return connection

    def close(self) -> None:
        self.desk.gate.set()
        self.server.close()
        self.server.close()
        for sock in self.socks:
            sock.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


def ask(call: int, body: bytes = b"", *buffers: bytes) -> Message:
    return Message(Kind.PYTHON_CALL, call, body, list(buffers))


def ended(sock: socket.socket) -> bool:
    """Wait until the server has hung up; nothing of worth may come before."""
    try:
        while data := sock.recv(4096):
            assert len(data) < 100
    except ConnectionError:
        pass
    return True


def until(true: Callable[[], bool]) -> None:
    deadline = Deadline.after(SOON)
    while not true():
        assert not deadline.passed()
        threading.Event().wait(0.001)


# Calls.


@pytest.mark.parametrize("purpose", list(Purpose))
def test_sr2_requests_are_answered(
    world: World, purpose: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module._PipeOwner, "look", lambda owner: None)  # nothing is slow
    connection = world.open(purpose)
    for number in range(20):
        connection.send(ask(number, b"%d" % number, b"x" * number))
        answer = connection.receive()
        assert (answer.call, answer.body) == (number, b"%d" % number)
    assert len(world.desk.threads) == 1


@pytest.mark.parametrize("purpose", list(Purpose))
def test_sr6_neither_the_last_request_nor_the_last_answer_is_kept(
    world: World, purpose: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, handle = threading.Semaphore(0), world.desk.handle

    class Block(bytearray):
        """Tells when it is gone."""

    def watch(caller: Hello, message: Message, later: Later) -> Message | None:
        block = Block(b"answer")
        for watched in (block, message.buffers[0]):
            weakref.finalize(watched, gone.release).atexit = False
        assert handle(caller, message, later) is not None
        return Message(Kind.REPLY, message.call, b"", [memoryview(block)])

    monkeypatch.setattr(world.desk, "handle", watch)
    connection = world.open(purpose)
    connection.send(ask(1, b"", bytes(100_000)))
    assert connection.receive().buffers == [b"answer"]
    assert gone.acquire(timeout=SOON)
    assert gone.acquire(timeout=SOON)


def test_sr2_many_requests_at_once_on_a_pipe_are_all_answered(world: World) -> None:
    connection = world.open(Purpose.PIPE)
    sender = threading.Thread(
        target=lambda: connection.send_all([ask(n, b"%d" % n) for n in range(5000)])
    )
    sender.start()
    assert sorted(connection.receive().call for _ in range(5000)) == list(range(5000))
    sender.join()


@pytest.mark.parametrize("blocking", [b"block", b"way"])
def test_sr3_a_call_that_blocks_holds_up_nobody_behind_it(world: World, blocking: bytes) -> None:
    connection = world.open(Purpose.PIPE)
    connection.send_all([ask(1, b"before"), ask(2, blocking), ask(3, blocking), ask(4, b"behind")])
    assert {connection.receive().call, connection.receive().call} == {1, 4}
    connection.send(ask(5))
    assert connection.receive().call == 5
    world.desk.gate.set()
    assert {connection.receive().call, connection.receive().call} == {2, 3}
    connection.send(ask(6))
    assert connection.receive().call == 6


def test_threads_of_calls_that_blocked_end(world: World) -> None:
    connection = world.open(Purpose.PIPE)
    before = threading.active_count()
    for round_ in range(3):
        connection.send_all([ask(round_ * 100 + n, b"way") for n in range(20)])
        for _ in range(20):
            world.desk.entered.acquire()
        world.desk.gate.set()
        assert len({connection.receive().call for _ in range(20)}) == 20
        world.desk.gate.clear()
    until(lambda: threading.active_count() <= before + 1)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_an_answer_may_come_later_from_any_thread(world: World, purpose: Purpose) -> None:
    connection = world.open(purpose)
    connection.send(ask(1, b"later"))
    world.desk.entered.acquire()
    if purpose is Purpose.PIPE:
        connection.send(ask(2))
        assert connection.receive().call == 2
    world.desk.later.pop()(Message(Kind.REPLY, 1, b"here"))
    assert connection.receive().body == b"here"
    connection.send(ask(3, b"later"))
    world.desk.entered.acquire()
    connection.close()
    later = world.desk.later.pop()
    until(lambda: raises(lambda: later(Message(Kind.REPLY, 3))))


@pytest.mark.parametrize("purpose", list(Purpose))
def test_an_answer_that_comes_later_waits_for_no_caller_that_does_not_read(
    world: World, purpose: Purpose
) -> None:
    connection = world.open(purpose)
    connection.send(ask(1, b"later"))
    assert world.desk.entered.acquire(timeout=SOON)
    world.desk.later.pop()(Message(Kind.REPLY, 1, bytes(8 << 20)))  # or it would hang here
    assert len(connection.receive().body) == 8 << 20
    connection.send(ask(2))
    assert connection.receive().call == 2


def test_of_a_caller_that_does_not_read_no_more_is_read(world: World) -> None:
    connection = world.open(Purpose.PIPE)
    connection.send_all([ask(n, b"large") for n in range(300)])
    run = 0
    while world.desk.entered.acquire(timeout=0.5):
        run += 1
    assert run < 60  # those that are sent, or fit the socket, and those that are kept
    assert sorted(connection.receive().call for _ in range(300)) == list(range(300))


def raises(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_note_is_not_answered(world: World, purpose: Purpose) -> None:
    connection = world.open(purpose)
    connection.send(ask(1, b"note"))
    world.desk.entered.acquire()
    connection.send(ask(2))
    assert connection.receive().call == 2


def test_a_caller_that_does_not_read_holds_up_no_other_one(world: World) -> None:
    lazy, connection = world.open(Purpose.PIPE), world.open(Purpose.PIPE)
    big = bytes(1 << 20)
    lazy.send_all([ask(n, b"", big) for n in range(1)])
    threading.Thread(target=lambda: raises(lambda: lazy.send(ask(9, b"", big * 9)))).start()
    for number in range(5):
        connection.send_all([ask(number * 2, b"block"), ask(number * 2 + 1)])
        assert connection.receive().call == number * 2 + 1  # the watch is not stuck
    lazy.close()


def test_a_connection_may_end_while_its_calls_run(world: World) -> None:
    for purpose in Purpose:
        connection = world.open(purpose)
        connection.send(ask(1, b"block"))
        world.desk.entered.acquire()
        connection.close()
    world.desk.gate.set()
    connection = world.open(Purpose.PIPE)
    connection.send(ask(2))
    assert connection.receive().call == 2


def test_a_peer_that_sends_nonsense_is_hung_up_on(world: World) -> None:
    for purpose in Purpose:
        connection = world.open(purpose)
        world.socks[-1].sendall(HEADER.pack(99, 0, 65535, 0, 0, 2**63))
        with pytest.raises(ConnectionClosed):
            connection.receive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_bug_in_the_handler_ends_the_connection_instead_of_leaving_it_unread(
    world: World, purpose: Purpose
) -> None:
    connection = world.open(purpose)
    connection.send(ask(1, b"bug"))
    with pytest.raises(ConnectionClosed):
        connection.receive()


@pytest.mark.parametrize("body", [b"way", b"block"])
def test_without_a_thread_to_be_had_a_call_goes_on_where_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    connection = world.open(Purpose.PIPE)
    connection.send(ask(0))
    assert connection.receive().call == 0

    def none(*args: object, **kwargs: object) -> threading.Thread:
        refused.set()
        raise RuntimeError("can't start new thread")

    refused = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", none)
        connection.send_all([ask(1, body), ask(2)])
        assert refused.wait(SOON)
        other = world.connect()  # cannot be served, and is told so
        assert ended(other)
    world.desk.gate.set()
    assert {connection.receive().call, connection.receive().call} == {1, 2}
    assert world.open(Purpose.DIRECT)


def test_without_a_thread_that_accepts_there_is_no_listening(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.bind(f"{world.where}-2")
        monkeypatch.setattr(server_module, "_start", lambda *args: False)
        with pytest.raises(Overloaded, match="no thread to be had"):
            world.server.listen(sock)


def test_a_pipe_works_without_a_thread_that_watches_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = server_module._start
    monkeypatch.setattr(
        server_module,
        "_start",
        lambda name, *rest: not name.endswith("watch") and start(name, *rest),
    )
    connection = world.open(Purpose.PIPE)
    connection.send_all([ask(1), ask(2, b"way"), ask(3)])
    assert {connection.receive().call, connection.receive().call} == {1, 3}


def test_hanging_up_on_one_caller_leaves_the_others(world: World) -> None:
    connections = [world.open(purpose, "gone") for purpose in Purpose]
    other = world.open(Purpose.DIRECT, "here")
    world.server.hang_up("gone")
    for connection in connections:
        with pytest.raises(ConnectionClosed):
            connection.receive()
    other.send(ask(1))
    assert other.receive().call == 1


def test_a_caller_that_has_no_pipe_any_more_is_told_of(world: World) -> None:
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


def test_closing_hangs_up_on_everybody(world: World) -> None:
    connections = [world.open(purpose) for purpose in Purpose]
    stranger = world.connect()
    connections[0].send(ask(1, b"block"))
    world.desk.entered.acquire()
    world.server.close()
    for connection in connections:
        with pytest.raises(ConnectionClosed):
            connection.receive()
    assert ended(stranger)
    with pytest.raises(ConnectionError):
        world.connect()


# Strangers.


def test_who_does_not_hold_the_secret_stays_out(
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


def test_sr1_what_is_no_handshake_is_hung_up_on(world: World) -> None:
    world.server._handshake_within_s = 0.2
    rng = random.Random(4)
    for probe in [*PROBES, *(rng.randbytes(rng.randrange(1, 4096)) for _ in range(200))]:
        with closing(world.connect()) as sock:
            try:
                sock.sendall(probe)
            except ConnectionError:
                continue
            assert ended(sock)
    assert not world.desk.threads
    world.server._handshake_within_s = SOON
    assert world.open(Purpose.DIRECT)


def test_sr1_who_is_silent_or_slow_is_hung_up_on(world: World) -> None:
    world.server._handshake_within_s = 0.2
    silent = world.connect()
    half = world.connect()
    half.sendall(b"HFST\x01\x00")
    assert ended(silent)
    assert ended(half)
    slow = world.connect()
    assert raises(lambda: drip(slow))


def test_who_greets_nobody_is_hung_up_on(world: World) -> None:
    world.server._handshake_within_s = 0.5
    with pytest.raises((ConnectionClosed, HoldfastError)):  # before, where that took too long
        world.shake().receive()


def drip(sock: socket.socket) -> None:
    for byte in b"HFST\x01\x00" + bytes(200):
        sock.sendall(bytes([byte]))
        threading.Event().wait(0.02)


def test_the_oldest_stranger_makes_room(world: World) -> None:
    """SR-4."""
    waiting = [world.connect() for _ in range(4)]
    until(lambda: len(world.server._strangers) == 4)
    waiting += [world.connect() for _ in range(2)]
    assert all(ended(sock) for sock in waiting[:2])
    until(lambda: len(world.server._strangers) == 4)
    assert world.open(Purpose.DIRECT)


def test_those_inside_do_not_count_as_strangers(world: World) -> None:
    for _ in range(10):
        world.open(Purpose.DIRECT)
    until(lambda: not world.server._strangers)


def test_a_greeting_that_is_refused_is_told_why(world: World) -> None:
    world.desk.refusal = PeerLost("another one has its name now")
    connection = world.shake()
    connection.send(Hello("w0", 0, "life", "me", Purpose.DIRECT).encode())
    assert decode_welcome(connection.receive()) == "another one has its name now"
    with pytest.raises(ConnectionClosed):
        connection.receive()


def test_a_greeting_that_is_none_is_hung_up_on(world: World) -> None:
    connection = world.shake()
    connection.send(ask(1))
    with pytest.raises(ConnectionClosed):
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


def test_sr3_a_watch_that_sleeps_can_be_woken_whoever_came_when_it_fell_asleep() -> None:
    watch = server_module._Watch("test")
    could_be_woken: list[bool] = []

    class Late(threading.Event):
        """A quick call comes while the watch falls asleep."""

        def clear(self) -> None:
            if watch.asleep:
                watch.wake()
            super().clear()

        def wait(self, timeout: float | None = None) -> bool:
            could_be_woken.append(watch.asleep)
            watch.close()
            return True

    watch._awake, watch.asleep = Late(), False
    thread = threading.Thread(target=watch._run, daemon=True)
    thread.start()
    thread.join(SOON)
    assert could_be_woken == [True]


def test_a_watch_that_is_about_to_sleep_notices_its_end() -> None:
    watch = server_module._Watch("test")

    class Late(threading.Event):
        """Is closed at the last moment."""

        def clear(self) -> None:
            watch.close()
            super().clear()

    watch._awake = Late()
    thread = threading.Thread(target=watch._run, daemon=True)
    thread.start()
    thread.join(SOON)
    assert not thread.is_alive()
