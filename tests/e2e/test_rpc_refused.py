"""A live RPC agent against all that it must refuse; docs/security.md has the list."""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import logging
import os
import pickle
import random
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import PeerLost
from holdfast.net.auth import NONCE_BYTES, ClientHandshake, ServerHandshake, derive_key
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.server import listener as server_module
from holdfast.rpc.wire.codec import (
    AS_BYTEARRAY,
    AS_BYTES,
    BUFFERS_MAX,
    ELSEWHERE,
    HEADER,
    encode_head,
)
from holdfast.rpc.wire.connection import Connection, ConnectionEnded
from holdfast.rpc.wire.hello import Purpose, WorkerHello, decode_welcome
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo
from tests.e2e import hostile
from tests.e2e.hostile import HELLO_BYTES, KIB, MIB, OTHERS, PROOF_BYTES, REFUSED, hear, shake
from tests.unit.rpc.world import KEY, Table
from tests.waiting import until

SOON = 20.0
GUESSES, GUESSERS = 5_000, 4  # each way: over Unix sockets, and over TCP
PROBES = 5_000
TRIES = 500
SLOW = 250


class Live:
    """An agent that is attacked, `w0`, and one that is allowed in, `w1`."""

    def __init__(self, unix: bool) -> None:
        table = Table()
        self.victim = Agent(WorkerInfo("w0", 0), table, KEY, timeout_s=SOON)
        self.friend = Agent(WorkerInfo("w1", 1), table, KEY, timeout_s=SOON)
        self._unix = unix
        self.admitted: list[WorkerHello] = []
        check_hello = self.victim._dispatcher.check_hello

        def spy(hello: WorkerHello) -> None:
            self.admitted.append(hello)
            check_hello(hello)

        self.victim._dispatcher.check_hello = spy  # type: ignore[method-assign]
        for agent in (self.victim, self.friend):
            agent.start("127.0.0.1")
            assert agent.contact is not None
            table.contacts.append(agent.contact)
        self.contact: Contact = table.contacts[0]
        self.key = KEY.meant_for(self.contact.incarnation)
        self.table = table
        self._sockets: list[socket.socket] = []

    def dial(self) -> socket.socket:
        if not self._unix:
            host, _, port = self.contact.tcp.rpartition(":")
            return socket.create_connection((host, int(port)), timeout=SOON)
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(SOON)
        sock.connect(self.contact.unix)
        return sock

    def say(self, data: bytes) -> bytes:
        return hostile.say(self.dial(), data)

    def open(self, purpose: Purpose = Purpose.DIRECT) -> Connection:
        """Be let in, as a worker that holds the secret."""
        sock = self.dial()
        self._sockets.append(sock)
        shake(sock, self.key)
        link = Connection(sock)
        link.set_limit(SYSTEM_CLOCK.monotonic() + SOON)
        link.send(self.hello(purpose))
        assert decode_welcome(link.receive()) == ""
        return link

    def hello(self, purpose: Purpose = Purpose.DIRECT) -> Message:
        """Return the hello of a worker that is known, of a connection of its own each time."""
        name = f"rogue{len(self._sockets)}"
        info = WorkerInfo(name, len(self.table.contacts))
        self.table.contacts.append(Contact(info, name, self.contact.machine, "", ""))
        return WorkerHello(name, info.id, name, self.contact.incarnation, purpose).encode()

    def check_served(self) -> None:
        """Check that workers with the secret are served, known ones and new ones."""
        assert self.friend.call("w0", divmod, (7, 2)) == (3, 1)
        assert self.friend.call_async("w0", divmod, (7, 2)).wait(SOON) == (3, 1)
        link = self.open()
        link.send(Message(Kind.PYTHON_CALL, 1, pickle.dumps((divmod, (7, 2), None))))
        assert pickle.loads(bytes(link.receive().body)) == (3, 1)
        link.close()

    def nobody_came(self) -> None:
        """Check that only workers of the job were admitted."""
        assert {hello.name for hello in self.admitted} <= {"w1"}

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self.friend.close()
        self.victim.close()


@pytest.fixture(params=["unix", "tcp"])
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    running = Live(request.param == "unix")
    try:
        yield running
    finally:
        running.close()


def in_threads(works: list[Callable[[], None]], meanwhile: Callable[[], None]) -> None:
    """Let several do something, and do something else until they are done."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    meanwhile()
    while any(thread.is_alive() for thread in threads):
        meanwhile()
    for thread in threads:
        thread.join()


# No secret, or another one (X3).


def test_ten_thousand_wrong_secrets_open_no_connection_and_fill_no_log(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    begun = SYSTEM_CLOCK.monotonic()
    call = encode_head(live.hello()) + live.hello().body
    wrong: list[bytes] = []

    def guess(seed: int) -> None:
        rng = random.Random(seed)
        for number in range(GUESSES // GUESSERS):
            hello = hostile.greeting(KEY)
            match number % 4:
                case 0:  # another secret
                    answer = live.say(hello + rng.randbytes(PROOF_BYTES) + call)
                    right = answer in {REFUSED, b""}  # a reset may overtake the verdict
                case 1:  # the right secret, for something else
                    answer = with_key_of_the_store()
                    right = answer == REFUSED
                case 2:  # one that is too short
                    with live.dial() as sock:
                        sock.sendall(hello + rng.randbytes(rng.randrange(PROOF_BYTES)))
                        sock.shutdown(socket.SHUT_WR)
                        answer = hear(sock)
                    right = len(answer) in {0, HELLO_BYTES}
                case _:  # none at all
                    answer = live.say(call)
                    right = answer == b""
            if not right and not answer.endswith(REFUSED):
                wrong.append(answer)

    def with_key_of_the_store() -> bytes:
        key = derive_key(b"a secret of these tests, 32 bytes", "store")
        with live.dial() as sock:
            machine = ClientHandshake(key, os.urandom(NONCE_BYTES))
            sock.sendall(machine.greeting())
            sock.sendall(machine.receive(sock.recv(HELLO_BYTES)))
            return hear(sock)

    def served() -> None:
        assert live.friend.call("w0", divmod, (7, 2)) == (3, 1)

    in_threads([functools.partial(guess, n) for n in range(GUESSERS)], served)
    assert wrong == []
    live.nobody_came()
    # For each of the two listeners one line a second tells of it, and how many were left out.
    assert 1 <= len(caplog.records) <= 2 * (SYSTEM_CLOCK.monotonic() - begun + 2)


# Clients of other protocols (X4).


def test_ten_thousand_clients_of_other_protocols_are_disconnected(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0

    class Counted(ServerHandshake):
        taken = 0

        def receive(self, data: bytes) -> bytes:
            nonlocal most
            self.taken += len(data)
            most = max(most, self.taken)
            return super().receive(data)

    monkeypatch.setattr(server_module, "ServerHandshake", Counted)
    rng = random.Random(4)
    words = itertools.cycle([*OTHERS.values(), b"", rng.randbytes(20), rng.randbytes(4 * KIB)])

    def probe(number: int) -> None:
        for data in itertools.islice(words, number):
            answer = live.say(data) if data else closed_at_once()
            # A client that sends our magic word is told our version, and nothing else.
            assert not answer or (answer.startswith(b"HFST\1\1") and len(answer) == HELLO_BYTES)

    def closed_at_once() -> bytes:
        live.dial().close()
        return b""

    probe(PROBES // 10)
    before = hostile.resident_bytes()
    probe(PROBES - PROBES // 10)
    assert hostile.resident_bytes() - before < 64 * MIB  # of two gigabytes and more
    assert 0 < most <= 4 * KIB
    live.nobody_came()
    live.check_served()


# Recorded, mirrored and changed handshakes (X5).


def test_a_recorded_handshake_opens_no_connection(live: Live) -> None:
    """The handshake, the hello and a call, in one piece: none of them is obeyed."""
    ran: list[int] = []
    with live.dial() as sock:
        said = shake(sock, live.key)
    assert len(said) == HELLO_BYTES + PROOF_BYTES
    hello = live.hello()
    call = Message(Kind.PYTHON_CALL, 1, pickle.dumps((ran.append, (1,), None)))
    session = said + encode_head(hello) + hello.body + encode_head(call) + call.body
    for _ in range(TRIES):
        assert live.say(said).endswith(REFUSED)
        assert live.say(session)[-len(REFUSED) :] in {REFUSED, b""}  # a reset may overtake it
    assert ran == []
    live.nobody_came()


def test_its_own_words_open_nothing(live: Live) -> None:
    """Mirrored to the same connection and to another one, as hello and as proof."""
    for _ in range(TRIES):
        with live.dial() as sock, live.dial() as other:
            sock.sendall(hostile.greeting(KEY))
            answer = sock.recv(HELLO_BYTES)
            other.sendall(answer)
            proof = other.recv(HELLO_BYTES)
            sock.sendall(answer[:PROOF_BYTES])
            other.sendall(proof[:PROOF_BYTES])
            assert (hear(sock), hear(other)) == (REFUSED, REFUSED)
    live.nobody_came()


def test_a_peer_of_another_version_is_refused_and_gets_our_version(live: Live) -> None:
    for number in range(2 * TRIES):
        hello = bytearray(hostile.greeting(KEY))
        hello[4] = (0, 2, 3, 255)[number % 4]
        answer = live.say(bytes(hello))
        assert answer[:6] == b"HFST\1\1"
        assert len(answer) == HELLO_BYTES
    live.nobody_came()


def test_a_server_without_the_secret_gets_no_message(live: Live) -> None:
    """Roles swapped: a server at a worker's address mirrors what it receives, or guesses."""
    heard: list[int] = []
    with contextlib.ExitStack() as stack:
        rogue = stack.enter_context(socket.socket(socket.AF_UNIX))
        path = f"\0holdfast-test-{os.urandom(8).hex()}"
        rogue.bind(path)
        rogue.listen()
        contact = Contact(WorkerInfo("w9", 9), "rogue", live.contact.machine, path, "")
        live.table.contacts.append(contact)

        def answer() -> None:
            for number in itertools.count():
                try:
                    sock, _ = rogue.accept()
                except OSError:
                    return
                with sock:
                    sock.settimeout(SOON)
                    hello = sock.recv(HELLO_BYTES)
                    sock.sendall(hello if number % 2 else b"HFST\1\0" + os.urandom(NONCE_BYTES))
                    proof = sock.recv(PROOF_BYTES)
                    sock.sendall(b"\0" + (proof if number % 3 else os.urandom(PROOF_BYTES)))
                    heard.append(len(hello) + len(proof) + len(hear(sock)))

        thread = threading.Thread(target=answer)
        thread.start()
        for _ in range(2 * TRIES):
            with pytest.raises(PeerLost, match="could not prove that it holds our secret"):
                live.friend.call("w9", divmod, (7, 2))
        rogue.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(heard) >= 2 * TRIES
    assert set(heard) == {HELLO_BYTES + PROOF_BYTES}


# What would run, if it were unpickled (X8).


class _Reduced:
    """Is unpickled by calling a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._reduced = (function, args)

    def __reduce__(self) -> Any:
        return self._reduced


def gadgets(canary: Path) -> list[bytes]:
    """Pickles that make a file when they are read: ten ways, in four versions of pickle."""
    path = str(canary)
    command = f"echo > {path}"
    code = f"open({path!r}, 'w').close()"
    made = [
        _Reduced(os.system, command),
        _Reduced(os.mkdir, path),
        _Reduced(os.symlink, "/dev/null", path),
        _Reduced(builtins.eval, code),
        _Reduced(builtins.exec, code),
        _Reduced(shutil.copyfile, "/dev/null", path),
        _Reduced(subprocess.check_output, ["touch", path]),
        _Reduced(Path(path).touch),
        _Reduced(functools.partial(os.system), command),
        _Reduced(getattr, _Reduced(os.mknod, path), "__class__"),
    ]
    return [pickle.dumps(one, protocol) for one in made for protocol in (2, 3, 4, 5)]


def test_bytes_of_an_unauthenticated_client_are_never_unpickled(live: Live, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for gadget in gadgets(canary):
        frames = encode_head(live.hello()) + live.hello().body
        for kind in (Kind.PYTHON_CALL, Kind.REPLY, Kind.FAILURE, Kind.PYTHON_REMOTE_CALL):
            frames += encode_head(Message(kind, 1, gadget)) + gadget
        hello = hostile.greeting(KEY)
        for said in (
            gadget,
            frames,
            hello + gadget,
            hello + frames,
            hello + os.urandom(PROOF_BYTES) + gadget,
            hello + os.urandom(PROOF_BYTES) + frames,
            hello[:6] + gadget.ljust(NONCE_BYTES + PROOF_BYTES, b"\0") + frames,
        ):
            with live.dial() as sock:
                with contextlib.suppress(OSError):  # it may have been disconnected already
                    sock.sendall(said)
                    sock.shutdown(socket.SHUT_WR)
                hear(sock)
    live.nobody_came()
    assert not canary.exists()


def test_each_of_these_would_run_if_it_were(live: Live, tmp_path: Path) -> None:
    """Else the test before would show nothing: a caller with the secret is served."""
    canary = tmp_path / "canary"
    for number, gadget in enumerate(gadgets(canary)):
        link = live.open()
        link.send(Message(Kind.PYTHON_CALL, 1, gadget))
        link.receive()
        link.close()
        assert canary.exists(), number
        if canary.is_dir():
            canary.rmdir()
        else:
            canary.unlink()


# Authenticated callers that send wrong lengths (X10).


def head(body: int, *buffers: int, count: int | None = None) -> bytes:
    number = len(buffers) if count is None else count
    start = HEADER.pack(Kind.PYTHON_CALL, 0, number, 0, 1, body)
    return start + struct.pack(f"<{len(buffers)}Q", *buffers)


LIES = {
    "a body of 2^63": head(2**63),
    "a body of 2^64 - 1": head(2**64 - 1),
    "a body just over the cap": head(2**40 + 1),
    "a buffer of 2^60": head(0, 2**60),
    "bytes of 2^60": head(0, 2**60 | AS_BYTES),
    "a buffer of two kinds": head(0, 1 | AS_BYTES | AS_BYTEARRAY),
    "buffers that are too large together": head(2**39, 2**39, 1),
    "more buffers than there may be": head(0, count=BUFFERS_MAX + 1),
    "as many buffers as there may be, all huge": head(0, *[2**31] * BUFFERS_MAX),
    "a buffer that is elsewhere, which cannot be read": head(0, 2**31 | ELSEWHERE) + bytes(32),
    "an unknown kind": HEADER.pack(200, 0, 0, 0, 1, 0),
    "unknown flags": HEADER.pack(Kind.PYTHON_CALL, 255, 0, 0, 1, 0),
}


@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.parametrize("name", LIES)
def test_a_worker_that_lies_is_dropped_before_anything_is_allocated(
    live: Live, name: str, purpose: Purpose
) -> None:
    before = hostile.resident_bytes()
    for _ in range(20):
        link = live.open(purpose)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            link._sock.sendall(LIES[name])
        with pytest.raises(ConnectionEnded):
            link.receive()
        link.close()
    assert hostile.resident_bytes() - before < 16 * MIB
    live.check_served()


def test_what_is_announced_and_does_not_come_takes_no_memory(live: Live) -> None:
    before = hostile.resident_bytes()
    links = []
    for body in (2**31 - 1, 2**31, 2**33, 2**39):
        for first in (head(body), head(0, body)):
            link = live.open()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                link._sock.sendall(first + bytes(KIB))
            links.append(link)
    live.check_served()
    assert hostile.resident_bytes() - before < 16 * MIB
    for link in links:
        link.close()


def test_a_greeting_of_any_length_is_not_waited_for(live: Live) -> None:
    live.victim._server.handshake_within_s = 0.5
    before = hostile.resident_bytes()
    for size in (2**20, 2**31, 2**39, 2**40):
        # A slow machine is disconnected before that.
        with live.dial() as sock, contextlib.suppress(ConnectionError):
            shake(sock, live.key)
            sock.sendall(HEADER.pack(Kind.HELLO, 0, 0, 0, 0, size) + b"{")
            hear(sock)
    assert hostile.resident_bytes() - before < 16 * MIB
    live.nobody_came()


# Slow clients (X11).


def test_slow_clients_keep_no_other_out_and_are_dropped_in_time(live: Live) -> None:
    server = live.victim._server
    server.handshake_within_s = 5.0
    with hostile.many_descriptors(), contextlib.ExitStack() as stack:
        live.check_served()
        slow = [stack.enter_context(live.dial()) for _ in range(SLOW)]
        for sock in slow[::2]:
            sock.sendall(b"H")
        late = 0
        hello = hostile.greeting(KEY)

        def all_refused() -> bool:
            nonlocal late
            live.check_served()
            for sock in slow[1::2]:
                with contextlib.suppress(OSError):
                    sock.sendall(hello[:-1][late : late + 1])  # never all: that is answered
            late += 1
            return not server._strangers

        until(all_refused, every_s=0.05)  # a byte now and then does not extend the limit
        assert [hear(sock) for sock in slow] == [b""] * SLOW
        live.check_served()


def test_too_many_unauthenticated_connections_keep_no_other_out(live: Live) -> None:
    server = live.victim._server
    with hostile.many_descriptors(), contextlib.ExitStack() as stack:
        for _ in range(3):
            for _ in range(server_module.STRANGERS_MAX // 2):
                stack.enter_context(live.dial()).sendall(b"H")
            live.check_served()
        assert len(server._strangers) <= server_module.STRANGERS_MAX


@pytest.mark.parametrize("live", ["tcp"], indirect=True)
def test_a_flood_from_one_address_does_not_keep_other_addresses_out(live: Live) -> None:
    """SR-4."""
    strangers = live.victim._server._strangers
    strangers.most = 20
    host, _, port = live.contact.tcp.rpartition(":")
    with contextlib.ExitStack() as stack:
        away = stack.enter_context(
            socket.create_connection((host, int(port)), SOON, source_address=("127.0.0.2", 0))
        )
        flood = [stack.enter_context(live.dial()) for _ in range(60)]
        assert [hear(sock) for sock in flood[:41]] == [b""] * 41
        shake(away, live.key)
        assert len(strangers) <= 20


def test_a_caller_that_does_not_read_its_answers_delays_no_other(live: Live) -> None:
    call = Message(Kind.PYTHON_CALL, 1, pickle.dumps((bytes, (4 * MIB,), None)))
    for purpose in Purpose:
        for _ in range(10):
            live.open(purpose).send(call)
    for _ in range(100):
        assert live.friend.call("w0", divmod, (7, 2)) == (3, 1)
    live.check_served()
