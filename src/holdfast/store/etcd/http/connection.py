"""A small HTTP/1.1 client: replies parsed as they come, a deadline on every call.

`HttpConnection` is one socket that is kept alive between calls.

Why not `http.client`: its timeouts are for each read, not for a call, and a read that times out
in the middle of a streamed reply loses what it had; a watch needs both.

A failed exchange is one of two things, and the difference matters to a write:
    NotSent     the request never left, so nothing happened;
    Lost        it left, at least in part, and no reply came: what happened is unknown.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, PeerViolation, Refused, Unavailable
from holdfast.net.address import Address
from holdfast.net.tcp import open_socket
from holdfast.net.tls import ClientTls, refusal
from holdfast.records import dataclass
from holdfast.store.etcd.http.reply import HttpReply, ReplyParser

__all__ = ["HttpConnection", "HttpRequest", "Lost", "NoAnswer", "NotSent"]

_READ_BYTES = 256 * 1024
# A socket takes a timeout of 0 as "do not block", and refuses one of 10^12 years.
_TIMEOUT_MIN_S, _TIMEOUT_MAX_S = 0.001, 1e6


class NotSent(Unavailable):
    """The request never left: nothing happened."""


class Lost(Unavailable):
    """The request left, and no whole reply came: it may or may not have been performed."""


class NoAnswer(Lost):
    """The request left, and the deadline passed before the reply was there."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What to ask for."""

    method: str
    path: str
    body: bytes = b""
    kind: str = "application/json"
    headers: tuple[str, ...] = ()


class HttpConnection:
    """One socket to one address, by TLS if there is any. Not thread-safe, except for `shut`."""

    def __init__(self, address: Address, tls: ClientTls | None = None) -> None:
        self.address = address
        self._tls = tls
        self._socket: socket.socket | None = None
        self._ahead: bytes | None = None  # what was read to see whether there is something
        self._shut = False

    def open(self, deadline: Deadline) -> None:
        """Connect, unless a connection from earlier is still good. NotSent names the step.

        Refused or PeerViolation if the other side does not want, or does not speak, our TLS.
        """
        if self._socket is not None and self._silent(self._socket):
            return
        self.close()
        if self._shut:
            raise NotSent("shut here", address=str(self.address))
        try:
            sock = open_socket(self.address, deadline)
            if self._tls is not None:
                sock = self._tls.secure(sock, self.address, deadline)
            self._socket = sock
            if self._shut:  # meanwhile, by a thread that saw no socket to wake us from
                self.shut()
        except Unavailable as error:
            raise NotSent(str(error), step=error.step, address=error.address) from None

    def call(self, request: HttpRequest, deadline: Deadline) -> HttpReply:
        """Send one request and return its reply. NotSent, Lost, or PeerViolation."""
        parts: list[bytes] = []
        parser = self.send(request, deadline)
        try:
            while not parser.done:
                data = self._receive(deadline)
                if data:
                    parts.append(self._parse(parser, data))
                elif parser.closed():
                    break
                else:
                    raise self._lost("it closed the connection")
        except HoldfastError:
            self.close()
            raise
        if not parser.keep_alive:
            self.close()
        return HttpReply(parser.status, parser.headers, b"".join(parts))

    def send(self, request: HttpRequest, deadline: Deadline) -> ReplyParser:
        """Send one request and return the parser for its reply. NotSent or Lost."""
        self.open(deadline)
        sock = self._sure()
        head = [
            f"{request.method} {request.path} HTTP/1.1",
            f"Host: {self.address}",
            f"Content-Type: {request.kind}",
            f"Content-Length: {len(request.body)}",
            *request.headers,
            "\r\n",
        ]
        try:
            sock.settimeout(_timeout(deadline))
            sock.sendall("\r\n".join(head).encode() + request.body)
        except OSError as error:
            refused = self._verdict(sock)
            self.close()
            if refused is not None:
                raise refused from None
            if isinstance(error, TimeoutError):
                raise self._no_answer() from None
            raise self._lost(error.strerror or str(error)) from None
        return ReplyParser()

    def read_body(self, parser: ReplyParser, deadline: Deadline) -> bytes:
        """Read once, waiting for bytes, and return what they add to a reply's body.

        NoAnswer at the deadline, with nothing lost; Lost when the connection ends.
        """
        data = self._receive(deadline)
        if not data:
            raise self._lost("it closed the connection")
        return self._parse(parser, data)

    def readable(self) -> bool:
        """Say whether bytes, or the end of the connection, can be read without waiting."""
        return self._socket is not None and not self._silent(self._socket)

    def shut(self) -> None:
        """Wake the thread that reads or writes, from any thread, and let no call begin any more."""
        self._shut = True
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                # Not the method of an SSLSocket, which first makes a plain socket of it: what
                # another thread sends at that moment would leave in the clear.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Let the socket go; the next call opens another."""
        self._ahead = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _silent(self, sock: socket.socket) -> bool:
        """Say whether there is nothing to read; on an idle connection that could only be its end.

        By TLS, bytes may come that mean nothing, and meaning may wait inside: only reading tells.
        """
        if not isinstance(sock, ssl.SSLSocket):
            return _no_bytes(sock)
        if self._ahead is None:
            try:
                sock.settimeout(0)
                self._ahead = sock.recv(_READ_BYTES)
            except ssl.SSLWantReadError:
                return True
            except OSError:
                return False
        return False

    def _verdict(self, sock: socket.socket) -> Refused | None:
        """Return what a server may have said of our certificate before it closed the connection."""
        if isinstance(sock, ssl.SSLSocket):
            try:
                sock.settimeout(0)
                sock.recv(1)
            except OSError as error:
                return refusal(error, self.address)
        return None

    def _receive(self, deadline: Deadline) -> bytes:
        """Return the next bytes, b"" at the end of the connection."""
        sock = self._sure()
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            return ahead
        try:
            sock.settimeout(_timeout(deadline))
            return sock.recv(_READ_BYTES)
        except TimeoutError:
            raise self._no_answer() from None
        except OSError as error:
            if refused := refusal(error, self.address):
                raise refused from None
            raise self._lost(error.strerror or str(error)) from None

    def _sure(self) -> socket.socket:
        sock = self._socket
        if sock is None:
            raise self._lost("it is closed")
        return sock

    def _parse(self, parser: ReplyParser, data: bytes) -> bytes:
        try:
            return parser.feed(data)
        except PeerViolation as error:
            raise PeerViolation(f"{self.address}: {error}", address=str(self.address)) from None

    def _lost(self, why: str) -> Lost:
        return Lost(f"connection to {self.address} lost: {why}", address=str(self.address))

    def _no_answer(self) -> NoAnswer:
        return NoAnswer(f"{self.address} did not answer in time", address=str(self.address))


def _timeout(deadline: Deadline) -> float | None:
    remaining = deadline.remaining()
    return None if remaining is None else min(max(remaining, _TIMEOUT_MIN_S), _TIMEOUT_MAX_S)


def _no_bytes(sock: socket.socket) -> bool:
    poll = select.poll()
    try:
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)
    except (OSError, ValueError):
        return False
