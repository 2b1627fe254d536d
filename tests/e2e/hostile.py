"""What hostile tests share: the messages of unauthenticated clients."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from holdfast.net.auth import NONCE_BYTES, ClientHandshake, Key

HELLO_BYTES, PROOF_BYTES = 38, 32
REFUSED = b"\1" + bytes(PROOF_BYTES)  # the verdict that every wrong proof gets
KIB, MIB = 1024, 1024 * 1024

LONG = b"x" * 4 * KIB
OTHERS = {
    "http get": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + LONG,
    "http post": b"POST / HTTP/1.1\r\nHost: evil.example\r\nContent-Type: text/plain\r\n\r\n"
    + LONG,
    "websocket": b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(193),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "redis inline": b"PING\r\n",
    "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "torch store": b"\x00" + struct.pack("<I", 0x3C85F7CE) + b"\x01" + bytes(64),
    "smb": bytes.fromhex("000000a4ff534d4272") + bytes(155),
    "nmap": b"\r\n\r\n",
    "pickle": b"\x80\x05\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x93.",
    "zeros": bytes(4 * KIB),
    "nearly us": b"HFS\0" + LONG,
    "us, then nonsense": b"HFST" + LONG,
}
"""What others say first."""


def hear(sock: socket.socket) -> bytes:
    """Read until the server hangs up."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := sock.recv(64 * KIB):
            data += more
    return data


def say(sock: socket.socket, data: bytes) -> bytes:
    """Send bytes without a handshake; return what the server sends until it disconnects."""
    with sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
        return hear(sock)


def greeting(key: Key) -> bytes:
    """Return a client's first words, which need no key."""
    return ClientHandshake(key, os.urandom(NONCE_BYTES)).greeting()


def shake(sock: socket.socket, key: Key) -> bytes:
    """Shake hands with the key; return all that was sent to the server."""
    machine = ClientHandshake(key, os.urandom(NONCE_BYTES))
    said = machine.greeting()
    sock.sendall(said)
    while not machine.done:
        data = sock.recv(HELLO_BYTES)  # what follows is not ours
        if not data:
            raise ConnectionResetError("the server hung up")
        answer = machine.receive(data)
        sock.sendall(answer)
        said += answer
    return said


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    """Let this process open as many files as it takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes() -> int:
    """Return how much memory this process has."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()
