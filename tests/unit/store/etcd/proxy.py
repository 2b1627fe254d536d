"""A proxy in front of one etcd member that loses what it is told to lose."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from types import TracebackType
from typing import Self

from holdfast.net.address import Address
from holdfast.store.etcd.http.reply import ReplyParser

TIMEOUT_S = 30.0


class Fate(Enum):
    """What happens to a request."""

    PASS = auto()
    LOSE_REPLY = auto()  # it is performed, and its sender never learns it
    LOSE_REQUEST = auto()  # it never arrives
    DELAY = auto()  # its sender is cut off; it arrives when `release` is called


class Proxy:
    """Forwards requests, except those for which `next` told another fate."""

    def __init__(self, upstream: Address) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._fates: deque[tuple[bytes, Fate]] = deque()
        self._delayed: list[bytes] = []
        self.requests: list[bytes] = []
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._pool = ThreadPoolExecutor(thread_name_prefix="proxy")
        self._closed = False
        self._pool.submit(self._accept)

    def next(self, path: str, *fates: Fate) -> None:
        """Tell the fates of the next requests whose head contains `path`."""
        with self._lock:
            self._fates.extend((path.encode(), fate) for fate in fates)

    def pass_all(self) -> None:
        """Forget the fates that were told and have not come to pass."""
        with self._lock:
            self._fates.clear()

    def release(self) -> list[int]:
        """Let the delayed requests arrive; return the statuses of their replies."""
        with self._lock:
            delayed, self._delayed = self._delayed, []
        statuses = []
        for request in delayed:
            with socket.create_connection(self._upstream, TIMEOUT_S) as upstream:
                statuses.append(_forward(upstream, request)[1])
        return statuses

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._closed = True
            for sock in (self._listener, *self._sockets):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        self._pool.shutdown()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._closed:
                    sock.close()
                    return
                self._sockets.add(sock)
            self._pool.submit(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            sock,
            socket.create_connection(self._upstream, TIMEOUT_S) as upstream,
        ):
            while request := _read_request(sock):
                fate = self._fate(request)
                if fate in (Fate.LOSE_REQUEST, Fate.DELAY):
                    break
                reply, _ = _forward(upstream, request)
                if fate is Fate.LOSE_REPLY:
                    break
                sock.sendall(reply)
        with self._lock:
            self._sockets.discard(sock)

    def _fate(self, request: bytes) -> Fate | None:
        with self._lock:
            self.requests.append(request)
            head = request.partition(b"\r\n\r\n")[0]
            if not self._fates or self._fates[0][0] not in head:
                return None
            fate = self._fates.popleft()[1]
            if fate is Fate.DELAY:
                self._delayed.append(request)
            return fate


def _read_request(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        more = sock.recv(65536)
        if not more:
            return b""
        body += more
    return head + b"\r\n\r\n" + body


def _forward(upstream: socket.socket, request: bytes) -> tuple[bytes, int]:
    upstream.sendall(request)
    parser = ReplyParser()
    reply = b""
    while not parser.done:
        data = upstream.recv(65536)
        if not data:
            break
        reply += data
        parser.feed(data)
    return reply, parser.status
