"""Connecting over TCP, each step named when it fails, and the transport that comes of it."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import TypeAlias

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import HoldfastError, PeerViolation, Refused, Step, Unavailable
from holdfast.net.address import Address
from holdfast.net.auth import NONCE_BYTES, ClientHandshake
from holdfast.net.frames import FrameDecoder, encode_frame
from holdfast.net.spin import SPINS, AdaptiveSpin

__all__ = [
    "HANDSHAKE_WITHIN_S",
    "TcpTransport",
    "connect",
    "open_socket",
    "resolve",
    "shake_hands",
]

RESOLVE_WITHIN_S = 30.0
HANDSHAKE_WITHIN_S = 5.0
TCP_WITHIN_S = 10.0
_READ_BYTES = 64 * 1024  # more would be memory that malloc maps and unmaps at every read
_TICK_S = 1.0

_SocketAddress: TypeAlias = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
_Where: TypeAlias = tuple[socket.AddressFamily, _SocketAddress]


def resolve(address: Address, deadline: Deadline) -> list[_Where]:
    """Return the socket addresses of a host, within the deadline and RESOLVE_WITHIN_S.

    Unavailable names the step.
    """
    with contextlib.suppress(OSError, UnicodeError):
        return _look_up(address, socket.AI_NUMERICHOST)  # asks no name server
    found: list[_Where] = []
    why = "no answer in time"

    def look_up() -> None:
        nonlocal why
        try:
            found.extend(_look_up(address, 0))
        except OSError as error:
            why = error.strerror or str(error)
        except UnicodeError:  # a label that is empty or too long
            why = "not a host name"

    # The system's resolver knows no deadline, so it gets a thread to be slow in.
    thread = threading.Thread(target=look_up, name="holdfast-resolve", daemon=True)
    thread.start()
    thread.join(deadline.sooner(RESOLVE_WITHIN_S).remaining())
    if found:
        return found
    raise Unavailable(
        f"cannot resolve {address.host!r}: {why}", step=Step.RESOLVE, address=str(address)
    )


def _look_up(address: Address, flags: int) -> list[_Where]:
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=flags)
    return [(family, where) for family, _, _, _, where in found]


def open_socket(
    address: Address, deadline: Deadline, made: Callable[[socket.socket], object] | None = None
) -> socket.socket:
    """Resolve and connect. Unavailable names the step that failed and the address tried.

    Its cause is what the system said of the last address that was tried.
    `made` hears of each socket before it is connected; shutting that down ends the attempt.
    """
    why = ""
    cause: OSError | None = None
    for family, where in resolve(address, deadline):
        try:
            return _open_one(family, where, deadline.sooner(TCP_WITHIN_S), made)
        except (TimeoutError, BlockingIOError) as error:
            why, cause = "no answer in time", error
        except OSError as error:
            why, cause = error.strerror or str(error), error
    text = f"cannot connect to {address}: {why}"
    raise Unavailable(text, step=Step.TCP, address=str(address)) from cause


def _open_one(
    family: socket.AddressFamily,
    where: _SocketAddress,
    limit: Deadline,
    made: Callable[[socket.socket], object] | None,
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if made is not None:
            made(sock)
        sock.settimeout(limit.remaining())
        sock.connect(where)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Where no server listens, the kernel may pick the target as our own port and connect the
        # socket to itself, which would also keep the real server from binding it. Closed without
        # lingering, it leaves the port free at once.
        if sock.getsockname() == sock.getpeername():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    except BaseException:
        sock.close()
        raise
    return sock


def shake_hands(sock: socket.socket, key: bytes, address: Address, deadline: Deadline) -> bytes:
    """Authenticate both ways; return the bytes that came after the handshake.

    PeerViolation or Refused names the step; Unavailable if the peer disconnects, or is silent until
    the deadline.
    """
    machine = ClientHandshake(key, os.urandom(NONCE_BYTES))
    try:
        sock.settimeout(_seconds(deadline))
        sock.sendall(machine.greeting())
        while not machine.done:
            sock.settimeout(_seconds(deadline))
            data = sock.recv(4096)
            if not data:
                raise _unshaken(address, "the server closed the connection")
            answer = machine.receive(data)
            if answer:
                sock.sendall(answer)
    except TimeoutError:
        raise _unshaken(address, "the server is silent") from None
    except PeerViolation as error:
        text = f"handshake with {address}: {error}"
        raise PeerViolation(text, step=error.step, address=str(address)) from None
    except Refused as error:
        text = f"handshake with {address}: {error}"
        raise Refused(text, step=error.step, address=str(address)) from None
    except Unavailable:
        raise
    except OSError as error:
        raise _unshaken(address, error.strerror or str(error)) from None
    return machine.leftover()


def _seconds(deadline: Deadline) -> float | None:
    """Return what is left for a socket to wait; never zero, which would mean not to wait."""
    left = deadline.remaining()
    return None if left is None else max(left, 0.001)


def _unshaken(address: Address, why: str) -> Unavailable:
    return Unavailable(
        f"handshake with {address}: {why}", step=Step.HANDSHAKE, address=str(address)
    )


def connect(address: Address, key: bytes, deadline: Deadline) -> TcpTransport:
    """Connect, authenticate, and return a transport."""
    sock = open_socket(address, deadline)
    try:
        limit = deadline.sooner(HANDSHAKE_WITHIN_S)
        return TcpTransport(sock, str(address), shake_hands(sock, key, address, limit))
    except HoldfastError:
        sock.close()
        raise


class TcpTransport:
    """Frames over an authenticated socket. See `transport.Transport`."""

    def __init__(self, sock: socket.socket, peer: str, early: bytes = b"") -> None:
        self.peer = peer
        self._socket = sock
        self._decoder = FrameDecoder()
        self._early = self._decoder.feed(early)
        self._closed = False
        # Held by the thread that reads from the socket.
        self._reading = threading.Lock()
        # Waits are measured by poll(). A kernel timeout (SO_RCVTIMEO) would spare one system call,
        # but starts afresh after each signal: a timer that ticks faster would switch it off.
        sock.settimeout(None)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._spin = AdaptiveSpin(os.cpu_count() or 1)
        # Another one to send, because a poll object serves one thread at a time; and the
        # number, because a socket that is closed meanwhile has none.
        self._poll_room = select.poll()
        self._fd = sock.fileno()

    def send(self, payload: bytes, deadline: Deadline) -> None:
        data = encode_frame(payload)
        sent = self._send_some(data)
        while sent < len(data):
            if deadline.passed():
                raise self._lost("the peer does not read")
            self._make_room(deadline)
            sent += self._send_some(memoryview(data)[sent:])

    def receive(self, wait_s: float) -> list[bytes]:
        with self._reading:
            return self._receive(wait_s)

    def _receive(self, wait_s: float) -> list[bytes]:
        if self._early:
            early, self._early = self._early, []
            return early
        if self._closed:  # the descriptor's number may be another file's by now
            raise self._lost("closed here")
        if self._spin.now:
            frames = self._look()
            self._spin.record_spin(bool(frames))
            if frames:
                return frames
        begun = SYSTEM_CLOCK.monotonic()
        if not self._poll.poll(1000 * max(0.0, min(wait_s, _TICK_S))):
            return []
        self._spin.record_sleep(SYSTEM_CLOCK.monotonic() - begun)
        return self._read(socket.MSG_DONTWAIT)

    def _look(self) -> list[bytes]:
        """Spin: read what arrives within a moment, perhaps nothing."""
        frames: list[bytes] = []
        for _ in range(SPINS):
            frames = self._read(socket.MSG_DONTWAIT)
            if frames:
                break
        return frames

    def _read(self, flags: int) -> list[bytes]:
        try:
            data = self._socket.recv(_READ_BYTES, flags)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        if not data:
            raise self._lost("the peer closed the connection")
        return self._decoder.feed(data)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that is in recv
            self._socket.close()

    def release(self) -> None:
        self._closed = True
        self._socket.close()

    def _make_room(self, deadline: Deadline) -> None:
        """Wait until the peer reads. If it waits for us to read first, do so unless a thread reads.

        What is read here is kept for `receive`.
        """
        if self._closed:  # the descriptor's number may be another file's by now
            raise self._lost("closed here")
        limit = deadline.sooner(_TICK_S)
        if not self._wait_for(select.POLLIN | select.POLLOUT, limit) & select.POLLIN:
            return
        if not self._reading.acquire(blocking=False):  # another thread receives it
            self._wait_for(select.POLLOUT, limit)
            return
        try:
            self._early += self._read(socket.MSG_DONTWAIT)
        except PeerViolation as error:
            raise self._lost(str(error)) from None
        finally:
            self._reading.release()

    def _wait_for(self, events: int, limit: Deadline) -> int:
        self._poll_room.register(self._fd, events)
        found = self._poll_room.poll(1000 * (limit.remaining() or 0.0))
        return found[0][1] if found else 0

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None

    def _lost(self, why: str) -> Unavailable:
        return Unavailable(f"connection to {self.peer} lost: {why}", address=self.peer)
