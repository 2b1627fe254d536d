"""Accepts connections, and admits those of workers of the job.

A connection is for synchronous calls ("direct") or for pipelined ones ("pipe"); its opener says
which. What follows the handshake is in `serving.py`.

Guarantees
    SR-1  From an unauthenticated peer, the server reads only a handshake of fixed size, within a
          time limit; from another user at a Unix socket it reads nothing.
    SR-2  Every request that is read gets one reply, unless the connection is gone.
    SR-3  A call that blocks delays the calls behind it on its pipe by at most two ticks, and not at
          all if its function was slow the last time. While THREADS_MAX threads are busy, a slow one
          is refused with Overloaded.
    SR-4  Unauthenticated connections, however many, keep no worker out: the next connection
          displaces the oldest one of the address that has the most.
    SR-5  When a connection of a caller ends and no pipe of it is left, `left` is called: the caller
          will not receive the replies to its requests on pipes. Not while this server closes.
    SR-6  A connection that is idle keeps neither the last request nor the last reply, and after
          PARK_AFTER_S no thread.
    SR-7  `hang_up` ends every connection of a caller, also one that is being admitted: it is known
          before the handler checks it, so none is welcomed unseen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import partial

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import HoldfastError, Overloaded, PeerViolation, Refused, Step
from holdfast.forks import close_in_child
from holdfast.ids import CauseId
from holdfast.net.address import Address
from holdfast.net.auth import NONCE_BYTES, Key, ServerHandshake
from holdfast.net.credentials import check_peer
from holdfast.net.descriptors import share_of_descriptors
from holdfast.net.reactor import tune
from holdfast.net.unauthenticated import UnauthenticatedConnections
from holdfast.observe.events import ConnectionRefused
from holdfast.observe.sinks import LogSink
from holdfast.rpc.server.parking import Parking
from holdfast.rpc.server.serving import (
    DirectConnection,
    PipeConnection,
    RequestHandler,
    Serving,
    StallWatch,
)
from holdfast.rpc.server.worker_pool import WorkerPool, try_start
from holdfast.rpc.wire.connection import Connection, ConnectionEnded
from holdfast.rpc.wire.hello import Purpose, WorkerHello, decode_hello, encode_welcome
from holdfast.rpc.wire.messages import NEVER

__all__ = ["Server"]

HANDSHAKE_WITHIN_S = 5.0
STRANGERS_MAX = 256
ACCEPT_AGAIN_S = 0.05

_log = logging.getLogger("holdfast.rpc")


class Server:
    """Accepts connections at any number of listening sockets."""

    def __init__(
        self,
        name: str,
        key: Key,
        handler: RequestHandler,
        *,
        handshake_within_s: float = HANDSHAKE_WITHIN_S,
        strangers_max: int = STRANGERS_MAX,
    ) -> None:
        self._name = name
        self._key = key
        self._handler = handler
        self.handshake_within_s = handshake_within_s
        self._lock = threading.Lock()
        self._listeners: list[socket.socket] = []
        self._strangers = UnauthenticatedConnections[socket.socket](
            share_of_descriptors(strangers_max)
        )
        self._connections: dict[Connection, WorkerHello] = {}
        self.left: Callable[[WorkerHello], object] | None = None
        """Called for a caller that has no pipe any more, maybe repeatedly. Must not block."""
        self._handled = 0  # on connections that have ended
        self._closing = False
        self._pool = WorkerPool(name)
        self._parking = Parking(name, self._pool)
        self._watch = StallWatch(name)
        self._serving = Serving(handler, self._pool, self._parking, self._watch, self._forget)
        self._cause = CauseId(name)
        self._sink = LogSink()

    def listen(self, sock: socket.socket) -> None:
        """Accept connections at a bound socket, which belongs to the server from now on."""
        sock.listen(512)
        close_in_child(sock)
        self._listeners.append(sock)
        if not try_start(f"{self._name}-accept", self._accept, sock):
            raise Overloaded("there is no thread to be had that could accept connections")

    def hang_up(self, incarnation: str) -> None:
        """End the connections of one caller."""
        with self._lock:
            connections = [
                connection
                for connection, by in self._connections.items()
                if by.incarnation == incarnation
            ]
        for connection in connections:
            connection.shut()

    @property
    def connections(self) -> dict[Connection, WorkerHello]:
        """The connections that are served, with their callers."""
        with self._lock:
            return dict(self._connections)

    @property
    def handled(self) -> int:
        """How many messages have been handled so far."""
        with self._lock:
            return self._handled + sum(connection.handled for connection in self._connections)

    def close(self) -> None:
        """Stop accepting, and end all connections. Idempotent."""
        with self._lock:
            self._closing = True
            connections, strangers = list(self._connections), list(self._strangers)
        for sock in self._listeners:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
            sock.close()
        for sock in strangers:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.shut()  # the thread that serves it closes it
        self._watch.close()
        self._parking.close()
        self._pool.close()

    def _accept(self, listener: socket.socket) -> None:
        logged = False
        while True:
            try:
                sock, address = listener.accept()
            except OSError as error:
                if self._closing:
                    return
                if not logged:  # once: waiting connections must not fill the log
                    _log.warning("a connection could not be accepted: %s", error)
                logged = True
                SYSTEM_CLOCK.sleep(ACCEPT_AGAIN_S)  # descriptors may be short
                continue
            logged = False
            close_in_child(sock)
            try:
                check_peer(sock, self._key.group)
            except (Refused, OSError) as error:
                self._turned_away(sock, error)
                sock.close()
                continue
            with self._lock:
                refused = self._closing
                if not refused:
                    self._hold(sock, address[0] if address else "")
            if refused or not self._pool.run(partial(self._welcome, sock), reads=True):
                self._known(sock)
                sock.close()

    def _hold(self, sock: socket.socket, host: str) -> None:
        """Accept one more unauthenticated connection, and end the one that it displaces."""
        crowded_out = self._strangers.admit(sock, host)
        if crowded_out is not None:
            with contextlib.suppress(OSError):
                crowded_out.shutdown(socket.SHUT_RDWR)  # the thread that reads it closes it

    def _known(self, sock: socket.socket) -> None:
        """Remove a connection from the unauthenticated ones."""
        with self._lock:
            self._strangers.forget(sock)

    def _welcome(self, sock: socket.socket) -> None:
        """Admit a peer that holds the secret, and serve its connection."""
        try:
            connection, hello = self._meet(sock)
        except Exception as error:  # any error ends this connection and no other
            self._turned_away(sock, error)
            self._known(sock)
            sock.close()
            return
        with self._lock:
            self._strangers.forget(sock)  # an authenticated peer is not displaced
            refused = self._closing
            if not refused:
                self._connections[connection] = hello  # before the check: SR-7
        if refused:
            connection.close()
            return
        try:
            self._admit(connection, hello)
        except Exception as error:
            self._turned_away(sock, error)
            self._forget(connection)
            return
        if hello.purpose is Purpose.DIRECT:
            DirectConnection(connection, hello, self._serving).run()
        else:
            PipeConnection(connection, hello, self._serving).run()

    def _turned_away(self, sock: socket.socket, error: Exception) -> None:
        """Log a connection that was not admitted; report an event if the peer was refused."""
        if not isinstance(error, Refused | PeerViolation):
            _log.debug("a connection was not opened: %s", error)
            return
        peer = "this machine"
        if sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                peer = str(Address(*sock.getpeername()[:2]))
        self._sink.emit(
            ConnectionRefused(
                cause=self._cause,
                at=SYSTEM_CLOCK.monotonic(),
                peer=peer,
                step=Step.HANDSHAKE,
                reason=str(error),
            )
        )

    def _meet(self, sock: socket.socket) -> tuple[Connection, WorkerHello]:
        """Shake hands, and read which worker the peer is."""
        limit = Deadline.after(self.handshake_within_s)
        if sock.family != socket.AF_UNIX:
            tune(sock)
        machine = ServerHandshake(self._key, os.urandom(NONCE_BYTES))
        while not machine.done:
            if limit.passed():
                raise TimeoutError
            sock.settimeout(max(0.001, limit.remaining() or 0.0))
            data = sock.recv(256)
            if not data:
                raise ConnectionEnded("Connection closed by peer")
            try:
                answer = machine.receive(data)
            except HoldfastError:
                with contextlib.suppress(OSError):
                    sock.sendall(machine.farewell)
                raise
            sock.sendall(answer)
        connection = Connection(sock, machine.leftover())
        connection.set_limit(limit.at or NEVER)
        return connection, decode_hello(connection.receive())

    def _admit(self, connection: Connection, hello: WorkerHello) -> None:
        """Welcome a worker, or tell it why not."""
        try:
            self._handler.check_hello(hello)
        except HoldfastError as error:
            connection.send(encode_welcome(str(error)))
            raise
        connection.send_all([*connection.peer_memory.offer(), encode_welcome("")])
        connection.set_limit(NEVER)

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            caller = self._connections.pop(connection, None)
            if caller is not None:
                self._handled += connection.handled
            is_gone = caller is not None and not self._has_pipe(caller.incarnation)
            left = None if self._closing else self.left
        connection.close()
        if caller is not None and is_gone and left is not None:
            left(caller)

    def has_pipe(self, incarnation: str) -> bool:
        """Say whether there is a pipe of this caller."""
        with self._lock:
            return self._has_pipe(incarnation)

    def _has_pipe(self, incarnation: str) -> bool:
        return any(
            by.incarnation == incarnation and by.purpose is Purpose.PIPE
            for by in self._connections.values()
        )
