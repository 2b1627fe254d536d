"""A reactor on loopback whose handlers note what happens, for tests."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator

from holdfast.net.address import Address
from holdfast.net.reactor import Reactor, ReactorConnection
from holdfast.testing.clock import ManualClock

SOON = 30.0
LOOPBACK = Address("127.0.0.1", 0)


class Recorder:
    """A handler that notes what happens, and does what it is told."""

    def __init__(self, connection: ReactorConnection) -> None:
        self.connection = connection
        self.received_bytes: queue.Queue[bytes] = queue.Queue()
        self.closed_for: queue.Queue[str] = queue.Queue()
        self.act: Callable[[bytes], None] = connection.send  # echo, unless told otherwise
        self.at_close: Callable[[], None] = lambda: None

    def received(self, data: bytes) -> None:
        self.received_bytes.put(data)
        self.act(data)

    def closed(self, reason: str) -> None:
        self.closed_for.put(reason)
        self.at_close()

    def reason(self) -> str:
        """Wait until the connection is over, and return why; it is told once only (RE-3)."""
        reason = self.closed_for.get(timeout=SOON)
        assert self.closed_for.empty()
        return reason


class Server:
    """A reactor on loopback and the handlers of its connections."""

    def __init__(self, address: Address = LOOPBACK, clock: ManualClock | None = None) -> None:
        self.reactor = Reactor("test-reactor", clock) if clock else Reactor("test-reactor")
        self.handlers: queue.Queue[Recorder] = queue.Queue()
        self.address = self.reactor.listen(address, self.make)

    def make(self, connection: ReactorConnection) -> Recorder:
        handler = Recorder(connection)
        self.handlers.put(handler)
        return handler

    def connect(self) -> tuple[socket.socket, Recorder]:
        sock = socket.create_connection(self.address, timeout=SOON)
        return sock, self.handlers.get(timeout=SOON)

    def on_thread(self, action: Callable[[], object]) -> None:
        """Do something on the reactor's thread and wait until it is done.

        In the round after the current one, which may have looked at the clock before this call.
        """
        done = threading.Event()

        def act() -> None:
            try:
                action()
            finally:
                done.set()

        self.reactor.call_soon(lambda: self.reactor.call_soon(act))
        assert done.wait(SOON)


@contextlib.contextmanager
def serving(address: Address = LOOPBACK, clock: ManualClock | None = None) -> Iterator[Server]:
    server = Server(address, clock)
    server.reactor.start()
    try:
        yield server
    finally:
        server.reactor.close()


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Give a port without a listener on 127.0.0.1, whatever other processes do."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def echo(sock: socket.socket, data: bytes = b"hello") -> None:
    """Check that the connection is served."""
    sock.sendall(data)
    assert read(sock, len(data)) == data


def read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := sock.recv(min(size - len(data), 1 << 20))):
        data += more
    return data


def drain(sock: socket.socket) -> int:
    """Read to the end; return how much came."""
    size = 0
    with contextlib.suppress(ConnectionResetError):
        while more := sock.recv(1 << 20):
            size += len(more)
    return size
