"""Raw peers for tests of torch's protocol: a client that says any bytes, a server that does."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.net.address import Address
from holdfast.observe.events import Event
from holdfast.store.c10d import messages as c10d
from holdfast.store.c10d.wire import encode_request

__all__ = ["HELLO", "LOOPBACK", "WITHIN_S", "Peer", "QueueSink", "ScriptedServer"]

LOOPBACK = Address("127.0.0.1", 0)
HELLO = encode_request(c10d.Validate())
WITHIN_S = 30.0


class Peer:
    """A socket to a server; every read is bounded."""

    def __init__(self, address: Address, *, hello: bool = True) -> None:
        self.socket = socket.create_connection(address, WITHIN_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hello:
            self.socket.sendall(HELLO)
            self.sync()

    def say(self, *requests: c10d.Request) -> None:
        self.socket.sendall(b"".join(map(encode_request, requests)))

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, f"the connection ended after {data!r}"
            data += piece
        return data

    def sync(self) -> None:
        """Return once everything that was said has been dealt with."""
        self.say(c10d.Ping(0x01020304))
        assert self.read(4) == b"\x04\x03\x02\x01"

    def get(self, key: bytes) -> bytes:
        self.say(c10d.Get(key))
        return self.read(int.from_bytes(self.read(8), "little"))

    def rest(self) -> bytes:
        """Return what comes until the server hangs up."""
        data = b""
        try:
            while piece := self.socket.recv(1 << 16):
                data += piece
        except ConnectionResetError:
            pass  # hung up with bytes of ours unread
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()


class QueueSink:
    """Events, to be waited for."""

    def __init__(self) -> None:
        self._events: queue.Queue[Event] = queue.Queue()

    def emit(self, event: Event) -> None:
        self._events.put(event)

    def close(self) -> None:
        pass

    def next(self, kind: type[Event]) -> Event:
        """Return the next event of this kind, skipping others."""
        while not isinstance(event := self._events.get(timeout=WITHIN_S), kind):
            pass
        return event


class ScriptedServer:
    """A listener that treats each connection as `serve` says, on a thread."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._listener = socket.create_server(LOOPBACK)
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(sock)
            thread = threading.Thread(target=self._one, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _one(self, sock: socket.socket) -> None:
        with sock:
            try:
                self._serve(sock)
            except OSError:
                pass  # the client hung up, or the test is over

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sock in (self._listener, *self._open):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()
        for thread in self._threads:
            thread.join(WITHIN_S)
