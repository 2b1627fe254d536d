"""Servers that answer every request with the same bytes, for what no real etcd says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from holdfast.net.address import Address


@contextlib.contextmanager
def answering(*answers: bytes, hang: bool = False) -> Iterator[Address]:
    """Serve connections one after the other: read, send the next answer, and close or hang.

    The last answer is repeated.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        left = list(answers)
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            held.append(sock)
            sock.settimeout(5)
            with contextlib.suppress(OSError):
                sock.recv(65536)
                sock.sendall(left.pop(0) if len(left) > 1 else left[0])
                if not hang:
                    sock.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Address("127.0.0.1", listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for sock in (listener, *held):
            sock.close()


def http(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "\r\n"]
    return "\r\n".join(lines).encode() + body
