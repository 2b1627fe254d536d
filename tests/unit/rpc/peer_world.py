"""A server that answers, and peers of it as a caller sees them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import HoldfastError
from holdfast.net.auth import Key, derive_key
from holdfast.rpc.client.background_reader import BackgroundReader
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.server.listener import Server
from holdfast.rpc.server.serving import Later
from holdfast.rpc.wire.hello import Purpose, WorkerHello
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo

KEY = derive_key(b"a secret that only two know", "rpc")
ME = Contact(WorkerInfo("me", 0), "my life", "machine", "", "")
SOON = 20.0


class Desk:
    """Answers with the body it was asked with, after the gate is open for requests that say so."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.purposes: list[Purpose] = []
        self.notes: list[int] = []
        self.lies = False
        self.refusal: HoldfastError | None = None

    def check_hello(self, hello: WorkerHello) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.purposes.append(hello.purpose)

    def handle(self, caller: WorkerHello, message: Message, later: Later) -> Message | None:
        if not message.kind.is_request:
            self.notes.append(message.call)
            self.entered.release()
            return None
        if message.body == b"wait":
            self.entered.release()
            assert self.gate.wait(SOON)
        return Message(Kind.REPLY, message.call + self.lies, message.body)


def ask(call: int, body: bytes = b"") -> Message:
    return Message(Kind.PYTHON_CALL, call, body)


class Heard:
    def __init__(self) -> None:
        self.answers: list[Message | Exception] = []
        self.here = threading.Event()

    def __call__(self, answer: Message | Exception) -> None:
        self.answers.append(answer)
        self.here.set()

    def wait(self) -> Message | Exception:
        assert self.here.wait(SOON)
        assert len(self.answers) == 1
        return self.answers[0]


def beside(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


@contextlib.contextmanager
def silent(machine: str, backlog: int = 8) -> Iterator[tuple[socket.socket, str, str]]:
    """A peer that lets others connect and says nothing, and its places: `unix` and `tcp`."""
    here = machine == ME.machine
    with socket.socket(socket.AF_UNIX if here else socket.AF_INET) as sock:
        where = f"\0holdfast-test-{os.urandom(8).hex()}"
        sock.bind(where if here else ("127.0.0.1", 0))
        sock.listen(backlog)
        sock.settimeout(SOON)
        yield sock, where, "" if here else f"127.0.0.1:{sock.getsockname()[1]}"


def raised(kind: type[BaseException], act: Callable[[], object]) -> BaseException:
    with pytest.raises(kind) as caught:
        act()
    return caught.value


def soon() -> float:
    return SYSTEM_CLOCK.monotonic() + SOON


class World:
    def __init__(self) -> None:
        self.desk = Desk()
        self.background = BackgroundReader("test-read")
        self.unix = f"\0holdfast-test-{os.urandom(8).hex()}"
        self.server = Server("test", KEY.meant_for("life"), self.desk)
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(self.unix)
        self.server.listen(sock)
        tcp = socket.socket()
        tcp.bind(("127.0.0.1", 0))
        self.tcp = f"127.0.0.1:{tcp.getsockname()[1]}"
        self.server.listen(tcp)
        self.peers: list[Peer] = []
        self.peer = self.make()

    def make(
        self,
        *,
        machine: str = "machine",
        life: str = "life",
        unix: str | None = None,
        tcp: str | None = None,
        key: Key = KEY,
    ) -> Peer:
        where = (self.unix if unix is None else unix, self.tcp if tcp is None else tcp)
        contact = Contact(WorkerInfo("you", 1), life, machine, *where)
        peer = Peer(contact, ME, key, self.background)
        self.peers.append(peer)
        return peer

    def close(self) -> None:
        self.desk.gate.set()
        for peer in self.peers:
            peer.lose("the test is over")
        self.background.close()
        self.server.close()
