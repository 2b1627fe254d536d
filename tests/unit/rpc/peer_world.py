"""A server that answers, and peers of it as a caller sees them."""

from __future__ import annotations

import os
import socket
import threading

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
    """Answers with the body it was asked with, after the gate is open for those who say so."""

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
