"""The server of `tcp://` stores: one thread, thousands of clients, nothing parsed before trust.

The shell around `service.py`: it authenticates connections, feeds the machine with frames and
time, and performs its effects. Once another process has asked to be a member of the store, the
machine is `replica/machine.py`, around the same service; until then nothing of it is there.

Guarantees
    SS-1  A byte of a peer reaches the codec only after the peer has proved itself.
    SS-2  A peer that has not done so and said Hello within HANDSHAKE_WITHIN_S is dropped, and at
          most UNAUTHENTICATED_MAX such peers are held, and an eighth of the descriptors: the oldest
          of the address that holds the most is evicted.
    SS-3  A client that breaks the protocol loses its connection; the others do not notice.
    SS-4  A client gets its answers at the pace at which it reads them: while more than
          CONGESTED_BYTES wait for it, its further calls wait too, at most one read's worth of
          them here and the rest in the network. So what waits for it is bounded.
"""

from __future__ import annotations

import logging
import math
import os
import random
from collections import deque
from collections.abc import Mapping
from itertools import count
from types import TracebackType
from typing import Self

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError, PeerViolation, Refused, Step
from holdfast.ids import CauseId, new_session_id
from holdfast.net.address import Address
from holdfast.net.auth import NONCE_BYTES, ServerHandshake
from holdfast.net.descriptors import share_of_descriptors
from holdfast.net.frames import FrameDecoder, encode_frame
from holdfast.net.reactor import Reactor, ReactorConnection, Timer
from holdfast.net.secret import Secret
from holdfast.net.unauthenticated import UnauthenticatedConnections
from holdfast.observe.events import (
    ConnectionClosed,
    ConnectionOpened,
    ConnectionRefused,
    ServerStarted,
    ServerStopped,
)
from holdfast.observe.metrics import Metric, Metrics
from holdfast.observe.sinks import LogSink, Sink
from holdfast.store.effects import Hangup, SendFrame, ServiceStatus
from holdfast.store.member_server import MemberServer
from holdfast.store.messages import KEY_CONTEXT
from holdfast.store.ops import Set, check_key, check_value
from holdfast.store.replica.joining import MemberPeer
from holdfast.store.replica.machine import Replica
from holdfast.store.replica.messages import (
    is_members_word,
)
from holdfast.store.service import Service

__all__ = ["HANDSHAKE_WITHIN_S", "UNAUTHENTICATED_MAX", "StoreServer"]

_log = logging.getLogger("holdfast.store")

HANDSHAKE_WITHIN_S = 5.0
UNAUTHENTICATED_MAX = 1024
CONGESTED_BYTES = 1024 * 1024


class StoreServer(MemberServer):
    """Serve a keyspace on an address. `start()` binds; `close()` ends it, and its keys with it.

    `values` are in the store before the first client connects.
    """

    def __init__(
        self,
        address: Address,
        secret: Secret,
        *,
        values: Mapping[str, bytes] | None = None,
        sink: Sink | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        rng = random.SystemRandom()
        self._cause = CauseId(f"server-{rng.getrandbits(32):08x}")
        service = Service(incarnation=new_session_id(rng))
        for key, value in (values or {}).items():
            service.keyspace.apply(Set(check_key(key), check_value(value)), clock.monotonic())
        service.keyspace.take_changes()  # no client watches yet
        super().__init__(address, secret.key(KEY_CONTEXT), service, rng, clock)
        self._sink = sink or LogSink()
        self._metrics = Metrics()
        self._opened, self._refused = (
            self._metrics.counter(
                "holdfast_store_connections_total", "Connections by what became of them", outcome=o
            )
            for o in ("opened", "refused")
        )
        self._peers: dict[int, _Peer] = {}
        # Peers that have not proved themselves yet.
        self._unauthenticated = UnauthenticatedConnections[_Peer](
            share_of_descriptors(UNAUTHENTICATED_MAX)
        )
        self._numbers = count(1)
        # The machine's timer, and the moment for which it is set.
        self._wake: Timer | None = None
        self._wake_at = math.inf

    @property
    def endpoint(self) -> str:
        """Where clients find the store."""
        return f"tcp://{self.address}"

    def start(self) -> None:
        """Bind and serve. UsageError if the address cannot be bound."""
        self._run(self._bind())

    def _bind(self) -> Reactor:
        reactor = Reactor("holdfast-store", self._clock)
        try:
            self.address = reactor.listen(self.address, self._admit)
        except HoldfastError:
            reactor.close()
            raise
        return reactor

    def _run(self, reactor: Reactor) -> None:
        with self._starting:
            self._reactor = reactor
            reactor.start()
        self._sink.emit(ServerStarted(cause=self._cause, at=self._now(), endpoint=self.endpoint))

    def close(self) -> None:
        """Stop serving and drop every connection. Idempotent."""
        self._part_with_members()
        with self._starting:  # another thread may be at it
            reactor, self._reactor = self._reactor, None
        if reactor is None:
            return
        reactor.close()
        if self._links is not None:
            self._links.close()
        self._sink.emit(
            ServerStopped(
                cause=self._cause, at=self._now(), endpoint=self.endpoint, reason="closed"
            )
        )

    def status(self) -> ServiceStatus:
        """Return a snapshot of the numbers; it may be a step behind."""
        return self._machine.status()

    def metrics(self) -> tuple[Metric, ...]:
        """Return the numbers as metrics, for `observe.prometheus.render_prometheus`."""
        for name, value in self.status()._asdict().items():
            self._metrics.gauge(f"holdfast_store_{name}", f"The store's {name} now").set(value)
        return self._metrics.snapshot()

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

    # On the reactor's thread from here on.

    def _admit(self, connection: ReactorConnection) -> _Peer:
        peer = _Peer(self, connection, next(self._numbers))
        self._peers[peer.number] = peer
        crowded_out = self._unauthenticated.admit(peer, connection.host)  # SS-2
        if crowded_out is not None:
            crowded_out.drop("made room for newer connections")
        return peer

    def _perform(self) -> None:
        """Do what the machine wants, and set its timer."""
        effects = self._machine.take_effects()
        if len(effects) == 1 and isinstance(effects[0], SendFrame):
            self._send(effects[0].connection, encode_frame(effects[0].payload))
        elif effects:
            # One write for each connection, however many frames it gets.
            batches: dict[int, list[bytes]] = {}
            for effect in effects:
                if isinstance(effect, SendFrame):
                    batches.setdefault(effect.connection, []).append(encode_frame(effect.payload))
            for number, frames in batches.items():
                self._send(number, b"".join(frames))
            for effect in effects:
                if isinstance(effect, Hangup) and effect.connection in self._peers:
                    self._peers[effect.connection].connection.close(effect.reason)
            if isinstance(self._machine, Replica):
                self._perform_as_member(self._machine, effects)
        self._set_timer()

    def _send(self, number: int, data: bytes) -> None:
        peer = self._peers.get(number)
        if peer is not None:
            peer.connection.send(data)
            if peer.connection.unsent() > CONGESTED_BYTES:
                self._machine.congest(number)

    def _set_timer(self) -> None:
        reactor = self._reactor  # read once: close() takes it away from another thread
        due = self._machine.next_wake()
        if due is None or due >= self._wake_at or reactor is None:
            return  # a timer that comes too early costs less than setting it anew each time
        if self._wake is not None:
            self._wake.cancel()
        self._wake_at = due
        self._wake = reactor.call_later(max(0.0, due - self._now()), self._tick)

    def _tick(self) -> None:
        self._wake_at = math.inf
        now = self._now()
        self._machine.tick(now)
        if self._links is not None and isinstance(self._machine, Replica):
            self._links.tick(now, self._machine.peers())
        self._perform()


class _Peer:
    """One connection: unauthenticated in its handshake, then a client of the machine."""

    def __init__(self, server: StoreServer, connection: ReactorConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self._server = server
        self._handshake: ServerHandshake | None = ServerHandshake(
            server._key, os.urandom(NONCE_BYTES)
        )
        # The step that it reached, if it fails to authenticate.
        self._step = Step.HANDSHAKE
        self._decoder = FrameDecoder()
        # What the peer is if it is no client.
        self._member: MemberPeer | None = None
        # Frames that wait until the peer has read its answers to the earlier ones.
        self._held: deque[bytes] = deque()
        connection.on_drained = self._drained
        # Fires unless the peer's first message comes in time.
        self._handshake_timer = self._start_timer()

    def _start_timer(self) -> Timer | None:
        reactor = self._server._reactor
        if reactor is None:  # the server is closing
            return None
        return reactor.call_later(HANDSHAKE_WITHIN_S, lambda: self.drop("silent for too long"))

    def received(self, data: bytes) -> None:
        if self._handshake is not None:
            data = self._greet(self._handshake, data)
            if not data:
                return
        self._held.extend(self._decoder.feed(data))
        self._serve()

    def _serve(self) -> None:
        """Handle the frames that are held, as far as the peer keeps up with its answers (SS-4)."""
        server, held, connection = self._server, self._held, self.connection
        if self._handshake_timer is not None and held:
            self._stop_timer()
            if is_members_word(held[0]):
                server._machine.disconnect(self.number, server._now(), by_peer=False)
                self._member = MemberPeer(server, server._machine, connection)
        if self._member is not None:
            while held:
                self._member.receive(held.popleft(), server._now())
            server._perform()
            return
        machine = server._machine
        now = server._now()
        try:
            while held and connection.unsent() <= CONGESTED_BYTES:
                machine.receive(self.number, held.popleft(), now)
                if machine.queued_bytes > CONGESTED_BYTES:
                    server._perform()
        finally:
            server._perform()  # what came before a violation counts, for the others too (SS-3)
        if held:
            connection.pause()

    def closed(self, reason: str) -> None:
        server = self._server
        server._peers.pop(self.number, None)
        self._stop_timer()
        if self._handshake is not None:
            server._unauthenticated.forget(self)
            self._refuse(reason)
            return
        by_peer = self.connection.closed_by_peer
        if self._member is not None:
            self._member.closed(server._now())
        server._machine.disconnect(self.number, server._now(), by_peer=by_peer)
        server._perform()
        server._sink.emit(
            ConnectionClosed(
                cause=self._cause(), at=server._now(), peer=self.connection.peer, reason=reason
            )
        )

    def drop(self, reason: str) -> None:
        """Close an unauthenticated connection."""
        self.connection.close(reason)

    def _greet(self, handshake: ServerHandshake, data: bytes) -> bytes:
        """Take bytes of the handshake; return what came after it."""
        try:
            answer = handshake.receive(data)
        except (PeerViolation, Refused) as error:
            self._step = error.step or Step.HANDSHAKE
            self.connection.send(handshake.farewell)
            raise
        if not handshake.done:
            self.connection.send(answer)
            return b""
        server = self._server
        server._unauthenticated.forget(self)
        self._handshake = None
        server._machine.connect(self.number)
        server._opened.add()
        server._sink.emit(
            ConnectionOpened(cause=self._cause(), at=server._now(), peer=self.connection.peer)
        )
        # Last, because a peer that has gone meanwhile makes this close the connection.
        self.connection.send(answer)
        return handshake.leftover()

    def _stop_timer(self) -> None:
        """Stop counting this peer's time."""
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None

    def _refuse(self, reason: str) -> None:
        server = self._server
        server._refused.add()
        server._sink.emit(
            ConnectionRefused(
                cause=self._cause(),
                at=server._now(),
                peer=self.connection.peer,
                step=self._step,
                reason=reason,
            )
        )

    def _cause(self) -> CauseId:
        return CauseId(f"{self._server._cause}/{self.number}")

    def _drained(self) -> None:
        self._server._machine.relieve(self.number)
        self._server._perform()
        try:
            self._serve()
        except HoldfastError as error:  # of a frame that was held: as if it had arrived now
            self.connection.close(str(error))
