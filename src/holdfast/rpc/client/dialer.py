"""Opens connections to one incarnation of one worker.

Guarantees
    PE-4  An attempt to connect that fails or takes too long is made again until the deadline of
          the call, and each attempt has more time than the one before. A peer is lost if its lease
          ends, if its system reports that no process listens there, or if it refuses the
          connection; never because it is slow.
    PE-5  Nothing is sent to a Unix socket of another user, and the proof that we send is valid for
          no other worker.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import weakref

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import (
    HoldfastError,
    Overloaded,
    PeerLost,
    PeerViolation,
    Refused,
    Unavailable,
)
from holdfast.forks import close_in_child
from holdfast.net.address import Address
from holdfast.net.auth import Key
from holdfast.net.credentials import check_peer
from holdfast.net.reactor import tune
from holdfast.net.tcp import open_socket, shake_hands
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.wire.connection import Connection, ConnectionEnded
from holdfast.rpc.wire.hello import Purpose, WorkerHello, decode_welcome
from holdfast.rpc.wire.messages import NEVER

__all__ = ["Dialer"]

TRY_S = 5.0
"""How long the first attempt to connect may take, and …"""
AGAIN_S = 0.02
"""… how long to wait after it. Both double with each attempt …"""
LONGER_MAX = 8
"""… up to this multiple."""


class Dialer:
    """Connects to one incarnation of a worker, from any thread."""

    def __init__(
        self, contact: Contact, me: Contact, key: Key, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._contact = contact
        self._me = me
        self._key = key.meant_for(contact.incarnation)
        self._clock = clock
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lost: PeerLost | None = None

    def stop(self, lost: PeerLost) -> None:
        """Open nothing more: threads that are opening a connection raise this error now."""
        with self._lock:
            self._lost = lost
            sockets = list(self._sockets)
        for sock in sockets:  # this wakes the threads; it harms no socket that is closed
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def open(self, purpose: Purpose, at: float) -> Connection:
        """Open a connection, authenticate, and send its purpose. Blocks until `at` at most."""
        me, contact = self._me, self._contact
        hello = WorkerHello(me.info.name, me.info.id, me.incarnation, contact.incarnation, purpose)
        deadline = Deadline(None if at == NEVER else at, self._clock)
        longer = 1
        while True:
            limit = deadline.sooner(TRY_S * longer)
            try:
                connection = self._connect(limit)
                refusal = self._say_hello(connection, hello, limit)
            except (OSError, HoldfastError) as error:
                if self._lost is not None or deadline.passed() or _is_final(error):
                    raise self._unopened(error, at) from None
                self._clock.sleep(deadline.sooner(AGAIN_S * longer).remaining() or 0.0)
                longer = min(2 * longer, LONGER_MAX)
                continue  # PE-4
            if refusal:
                connection.close()
                raise self._unopened(ConnectionEnded(refusal), at)
            return connection

    def _say_hello(self, connection: Connection, hello: WorkerHello, deadline: Deadline) -> str:
        """Send our identity and purpose; return why the peer refuses them, or an empty text."""
        try:
            connection.set_limit(NEVER if deadline.at is None else deadline.at)
            connection.send_all([*connection.peer_memory.offer(), hello.encode()])
            refusal = decode_welcome(connection.receive())
            connection.set_limit(NEVER)
        except BaseException:
            connection.close()
            raise
        return refusal

    def _unopened(self, error: Exception, at: float) -> Exception:
        """Return the error for a connection that could not be opened."""
        if self._lost is not None:
            return self._lost.anew()
        if at <= self._clock.monotonic():
            return TimeoutError(f"no connection was opened: {str(error) or 'no answer in time'}")
        info, text = self._contact.info, str(error)
        if _errno(error) in _SHORTAGES:
            return Overloaded(f"{info}: no connection can be opened: {text}")
        if not isinstance(error, ConnectionEnded):
            text = f"Connection closed by peer ({text})"
        return PeerLost(f"{info}: {text}", peer=info.name, incarnation=self._contact.incarnation)

    def _connect(self, deadline: Deadline) -> Connection:
        contact = self._contact
        address = Address("unix", 0)
        if contact.unix and contact.machine == self._me.machine:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._made(sock)
                sock.setblocking(False)
                self._connect_unix(sock, deadline)
                check_peer(sock, self._key.group)  # another user may have taken the name by now
            except BaseException:
                sock.close()
                raise
        else:
            host, _, port = contact.tcp.rpartition(":")
            if not port:
                raise _NoWay("it listens for workers of its own host only")
            address = Address(host.strip("[]"), int(port))
            sock = open_socket(address, deadline, self._made)
            tune(sock)
        try:
            return Connection(sock, shake_hands(sock, self._key, address, deadline), self._clock)
        except BaseException as error:
            sock.close()
            if isinstance(error, Refused):
                raise Refused(f"{error}, or is another worker than the one that we mean") from None
            raise

    def _made(self, sock: socket.socket) -> None:
        """Register a new socket: a forked child closes it, and `lose` shuts it down."""
        close_in_child(sock)
        with self._lock:
            if self._lost is not None:
                raise self._lost.anew()
            self._sockets.add(sock)

    def _connect_unix(self, sock: socket.socket, deadline: Deadline) -> None:
        """Connect; wait if the backlog is full, since the system does not for such a socket."""
        while self._lost is None:
            try:
                sock.connect(self._contact.unix)
            except BlockingIOError:
                if deadline.passed():
                    raise TimeoutError from None
                SYSTEM_CLOCK.sleep(0.005)
            else:
                return
        raise self._lost.anew()


def _is_final(error: Exception) -> bool:
    """Return whether another attempt to connect would fail in the same way."""
    if isinstance(error, Refused | PeerViolation | _NoWay):
        return True
    return _errno(error) in _NOBODY_THERE | _SHORTAGES


_NOBODY_THERE = {errno.ECONNREFUSED, errno.ENOENT}
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}  # on this host


def _errno(error: Exception) -> int | None:
    """Return the system's error number, if the error came from the system."""
    said = error.__cause__ if isinstance(error, Unavailable) else error
    return said.errno if isinstance(said, OSError) else None


class _NoWay(Unavailable):
    """There is no address at which this process could reach the peer."""
