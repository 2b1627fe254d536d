"""The server of torch's store protocol, for torch's own clients, on an address of its own.

A server has a key space to itself: it reaches neither the native store nor other servers, so a job
opens a new one for each attempt and no worker meets keys of an attempt before.

torch's protocol has no authentication. So a server asks the kernel which user has made a connection
from this host, and admits its own user alone. A server that binds another address than loopback has
a callback that vouches for connections from other hosts (`vouch`).

Guarantees
    CD-1  Nothing that a peer sends is parsed before the peer is admitted.
    CD-2  A connection from this host is admitted if its socket belongs to the user of this process.
    CD-3  A connection from another host is admitted if `vouch` says so within VOUCH_WITHIN_S.
    CD-4  Every other connection is closed, and one line says why; such lines are written at most
          once a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Self, TypeAlias

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError, PeerViolation, Step, Unavailable, UsageError
from holdfast.ids import CauseId
from holdfast.net.address import Address, is_loopback
from holdfast.net.descriptors import share_of_descriptors
from holdfast.net.owner import Ends, is_connected, judge_owner
from holdfast.net.reactor import Reactor, ReactorConnection
from holdfast.net.unauthenticated import UnauthenticatedConnections
from holdfast.observe.events import (
    ConnectionClosed,
    ConnectionOpened,
    ConnectionRefused,
    ServerStarted,
    ServerStopped,
)
from holdfast.observe.sinks import LogSink, Sink
from holdfast.store.c10d.messages import Request, Validate
from holdfast.store.c10d.space import DEFAULT_MAX_BYTES, C10dSpace
from holdfast.store.c10d.wire import KnownRequests, RequestParser

__all__ = ["HANDSHAKE_WITHIN_S", "UNAUTHENTICATED_MAX", "VOUCH_WITHIN_S", "C10dServer", "Vouch"]

HANDSHAKE_WITHIN_S = 5.0
VOUCH_WITHIN_S = 30.0
UNAUTHENTICATED_MAX = 1024
EARLY_BYTES_MAX = 16 * 1024
"""How much a peer may send while another host is asked: torch's client sends some and waits."""

Answer: TypeAlias = Callable[[str], None]
"""Takes why a connection is refused, or nothing if it is admitted. From any thread."""
Vouch: TypeAlias = Callable[[Ends, Answer], None]
"""Finds out whether a connection from another host is to be admitted. Must not block."""


class C10dServer:
    """A server that torch's TCPStore clients can use. `start()` binds, `with` does both.

    `max_bytes` bounds what it keeps: keys, values, queues, waits and half-received requests. A
    connection that wants more is closed; torch's protocol has no way to say why.
    """

    def __init__(
        self,
        address: Address,
        *,
        vouch: Vouch | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        sink: Sink | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if vouch is None and not is_loopback(address.host):
            raise UsageError(
                f"c10d server on {address}: torch's store protocol has no authentication; "
                "bind a loopback address, or give vouch=…, which admits other hosts"
            )
        self.address = address
        """Where it listens; after `start()` with the real port."""
        self._vouch = vouch
        self._max_bytes = max_bytes
        self._sink = sink or LogSink()
        self._clock = clock
        self._cause = CauseId(f"c10d-{random.SystemRandom().getrandbits(32):08x}")
        self._reactor: Reactor | None = None
        # Below: touched by the reactor's thread only.
        self._space = C10dSpace(max_bytes)
        self._known: KnownRequests = {}
        self._clients: dict[int, _ClientConnection] = {}
        # Those that have not sent the magic number yet.
        self._unauthenticated = UnauthenticatedConnections[_ClientConnection](
            share_of_descriptors(UNAUTHENTICATED_MAX)
        )
        self._numbers = count(1)
        self._held = 0  # what the parsers of all clients keep of half requests

    @property
    def endpoint(self) -> str:
        """Where clients find the store."""
        return f"c10d://{self.address}"

    def start(self) -> None:
        """Bind and serve. UsageError if the address cannot be bound."""
        reactor = Reactor("holdfast-c10d", self._clock)
        try:
            self.address = reactor.listen(
                self.address, lambda connection: self._welcome(reactor, connection)
            )
        except HoldfastError:
            reactor.close()
            raise
        self._reactor = reactor
        reactor.start()
        self._sink.emit(ServerStarted(cause=self._cause, at=self._now(), endpoint=self.endpoint))

    def close(self) -> None:
        """Stop serving and drop every connection; the keys are gone. Idempotent."""
        reactor, self._reactor = self._reactor, None
        if reactor is None:
            return
        reactor.close()
        self._sink.emit(
            ServerStopped(
                cause=self._cause, at=self._now(), endpoint=self.endpoint, reason="closed"
            )
        )

    def __enter__(self) -> Self:
        if self._reactor is None:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<C10dServer {self.endpoint}>"

    # On the reactor's thread from here on.

    def _now(self) -> float:
        return self._clock.monotonic()

    def _welcome(self, reactor: Reactor, connection: ReactorConnection) -> _ClientConnection:
        client = _ClientConnection(self, next(self._numbers), connection, reactor)
        self._clients[client.number] = client
        crowded_out = self._unauthenticated.admit(client, connection.host)
        if crowded_out is not None:
            crowded_out.drop("made room for newer connections")
        reactor.call_later(HANDSHAKE_WITHIN_S, client.drop_if_silent)
        return client

    def _judge(self, connection: ReactorConnection, answer: Answer) -> str | None:
        """Return why a connection is refused, or nothing if it is admitted.

        None if another host has to be asked: `answer` is told later.
        """
        try:
            ends = Ends.of_accepted(connection.socket)
            why = judge_owner(ends)
        except (OSError, Unavailable) as error:  # it is gone; the kernel does not tell
            return str(error)
        if why is not None:
            return why
        if self._vouch is None or is_loopback(ends.client.host):
            return "no process of this host has its other end"
        self._vouch(ends, answer)
        return None

    def _hold(self, change: int) -> None:
        """Count what half requests keep; PeerViolation if that leaves no room."""
        self._held += change
        if change > 0 and self._space.used + self._held > self._max_bytes:
            raise PeerViolation(f"c10d: the store is full, at most {self._max_bytes} bytes fit")


class _ClientConnection:
    """One connection of a torch client."""

    def __init__(
        self, server: C10dServer, number: int, connection: ReactorConnection, reactor: Reactor
    ) -> None:
        self.number = number
        self._server = server
        self._connection = connection
        self._reactor = reactor
        self._asked = self._admitted = False
        self._early = b""  # what came before it was admitted
        self._parser = RequestParser(server._known)
        self._held = 0
        self._over = False

    def received(self, data: bytes) -> None:
        if not self._asked:
            self._asked = True
            why = self._server._judge(self._connection, self._answered)
            if why is None:
                self._reactor.call_later(VOUCH_WITHIN_S, self._not_vouched_for)
            else:
                self._judged(why)
        if self._admitted:
            self._serve(data)
            return
        self._early += data
        if len(self._early) > EARLY_BYTES_MAX:
            raise PeerViolation(f"c10d: over {EARLY_BYTES_MAX} bytes came before it was admitted")

    def _answered(self, why: str) -> None:
        """Hear from any thread whether it is admitted."""
        self._reactor.call_soon(lambda: self._judged(why))

    def _not_vouched_for(self) -> None:
        self._judged(f"no agent vouched for it within {VOUCH_WITHIN_S:g} s")

    def _judged(self, why: str) -> None:
        """Admit it and serve what it has sent, or close it and say why."""
        if self._over or self._admitted:
            return
        if not why and not is_connected(self._connection.socket):
            why = "it was closed before it was admitted"
        if why:
            self._connection.close(why)
            return
        self._admitted = True
        early, self._early = self._early, b""
        try:
            self._serve(early)
        except PeerViolation as violation:
            self._connection.close(str(violation))

    def _serve(self, data: bytes) -> None:
        parser = self._parser
        try:
            known = parser.recognize(data)
            if known is not None:
                self._handle(known)
                return
            parser.feed(data)
            # Sending may end this connection, if its peer does not read.
            while not self._over and (request := parser.next()) is not None:
                if isinstance(request, Validate):
                    self._validated()
                self._handle(request)
            if not self._over and parser.held != self._held:
                self._count(parser.held)
        except PeerViolation as violation:
            self._end(str(violation))  # now; the connection may live until its output is sent
            raise

    def _handle(self, request: Request) -> None:
        clients = self._server._clients
        for number, reply in self._server._space.handle(self.number, request):
            client = clients.get(number)
            if client is not None:
                client._connection.send(reply)

    def closed(self, reason: str) -> None:
        self._end(reason)

    def drop(self, reason: str) -> None:
        """Close an unauthenticated connection."""
        if not self._over and not self._parser.validated:
            self._connection.close(reason)

    def drop_if_silent(self) -> None:
        """Close an unauthenticated connection that sends nothing, unless it waits for us."""
        if self._asked and not self._admitted:
            self._reactor.call_later(HANDSHAKE_WITHIN_S, self.drop_if_silent)
        else:
            self.drop("silent in the handshake")

    def _validated(self) -> None:
        server = self._server
        server._unauthenticated.forget(self)
        server._sink.emit(
            ConnectionOpened(cause=self._cause(), at=server._now(), peer=self._connection.peer)
        )

    def _count(self, held: int) -> None:
        change, self._held = held - self._held, held
        self._server._hold(change)

    def _end(self, reason: str) -> None:
        if self._over:
            return
        self._over = True
        server, peer = self._server, self._connection.peer
        del server._clients[self.number]
        server._unauthenticated.forget(self)
        server._space.disconnect(self.number)
        self._parser.close()
        self._early = b""
        self._count(0)
        cause, at = self._cause(), server._now()
        if self._parser.validated:
            server._sink.emit(ConnectionClosed(cause=cause, at=at, peer=peer, reason=reason))
        else:
            server._sink.emit(
                ConnectionRefused(cause=cause, at=at, peer=peer, step=Step.HANDSHAKE, reason=reason)
            )

    def _cause(self) -> CauseId:
        return CauseId(f"{self._server._cause}/{self.number}")
