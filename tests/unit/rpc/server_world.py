"""A server, what it does with requests, and connections to it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError
from holdfast.net.address import Address
from holdfast.net.auth import Key, derive_key
from holdfast.net.tcp import shake_hands
from holdfast.rpc.client.blocking import before_block
from holdfast.rpc.server.listener import Server
from holdfast.rpc.server.serving import Later
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.hello import Purpose, WorkerHello, decode_welcome
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

    def check_hello(self, hello: WorkerHello) -> None:
        if self.refusal is not None:
            raise self.refusal

    def handle(self, caller: WorkerHello, message: Message, later: Later) -> Message | None:
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
        connection.send(WorkerHello("w0", 0, incarnation, "me", purpose).encode())
        assert decode_welcome(connection.receive()) == ""
        return connection

    def close(self) -> None:
        self.desk.gate.set()
        self.server.close()
        self.server.close()
        for sock in self.socks:
            sock.close()


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


def raises(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return True
    return False
