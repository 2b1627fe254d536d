"""The caller's side of one peer: connections to one incarnation of one worker.

A synchronous call takes an idle connection, or opens one, and reads its own reply from it. The
connections belong to the peer, not to the calling threads. When DIRECT_MAX of them are in use, a
synchronous call shares the pipe with the asynchronous ones: opening a connection for each of many
threads would cost more.

Guarantees
    PE-1  When the peer is given up, every call that waits for it fails at once.
    PE-2  A connection on which something failed is closed and never used again; the next call
          opens another one, as long as this incarnation is not given up.
    PE-3  At most DIRECT_MAX connections and one pipe are open. At most EXCHANGES_MAX synchronous
          calls are under way; one more is refused with Overloaded.
    PE-6  An exchange ends at its limit, or LATE_S later if signals interrupt the thread that
          waits. The background reader enforces this while there are exchanges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import Overloaded, PeerLost, PeerViolation
from holdfast.net.auth import Key
from holdfast.rpc.client.background_reader import BackgroundReader
from holdfast.rpc.client.connecting import PendingPipe
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.dialer import Dialer
from holdfast.rpc.client.future import Carrier, Future
from holdfast.rpc.client.pipe import Pipe, Reply
from holdfast.rpc.client.transport import MessageTransport
from holdfast.rpc.wire.codec import encode_small
from holdfast.rpc.wire.connection import Connection, ConnectionEnded
from holdfast.rpc.wire.hello import Purpose
from holdfast.rpc.wire.messages import NEVER, Message

__all__ = ["Peer"]

DIRECT_MAX = 8
EXCHANGES_MAX = 512
LATE_S = 0.05
_QUIET_ROUNDS = 5


class Peer:
    """One incarnation of one worker, as callers use it."""

    def __init__(
        self,
        contact: Contact,
        me: Contact,
        key: Key,
        background: BackgroundReader,
        clock: Clock = SYSTEM_CLOCK,
        transport: MessageTransport | None = None,
    ) -> None:
        self.contact = contact
        self._transport = transport
        self._name = me.info.name
        self._dialer = Dialer(contact, me, key, clock)
        self._background = background
        self._clock = clock
        # Popped and appended without the lock: each is one instruction.
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._sharing = 0  # synchronous calls that share the pipe
        self._to_open = 0  # connections for synchronous calls that are being opened
        self._pipe: Pipe | None = None
        self._pipe_connection: Connection | None = None
        self._pending: PendingPipe | None = None
        self.lost: PeerLost | None = None
        """Why this incarnation was given up; None if it was not."""
        self._watched = False  # whether the background reader calls `expire` …
        self._quiet = 0  # … and how often that has found no exchange under way

    def exchange(self, message: Message, at: float = NEVER) -> Message:
        """Send a request and return its reply. Blocks; TimeoutError at the time `at`."""
        connection = self._send(message, at)
        if connection is None:
            return self._share_pipe(message, at)
        if not self._watched and at != NEVER:  # after its limit is set: see `expire`
            self._watched = True
            self._background.time(self)
        try:
            answer = connection.receive()
            if answer.call != message.call:
                raise PeerViolation(f"{self.contact.info}: an answer to another call came")
        except BaseException as error:
            self._discard(connection)  # a late reply may still arrive on it
            if isinstance(error, PeerViolation):
                error = ConnectionEnded(f"Connection closed by peer ({error})")
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise self._gone(error) from None
            raise
        connection.limit = NEVER
        if self.lost is None:
            self._idle.append(connection)
        else:
            self._discard(connection)
        return answer

    def _share_pipe(self, message: Message, at: float) -> Message:
        """Send a request by the pipe and return its reply, like `exchange`."""
        with self._lock:
            if DIRECT_MAX + self._sharing >= EXCHANGES_MAX:
                raise Overloaded(
                    f"{self.contact.info}: {EXCHANGES_MAX} calls to it are under way, the most"
                )
            self._sharing += 1
        future: Future[Message] = Future()
        carrier: Carrier | None = None
        try:
            carrier = future.driver = self.post(message, partial(_complete, future), at)
            return future.wait()
        finally:
            with self._lock:
                self._sharing -= 1
            if carrier is not None and not future.done():  # the wait was interrupted
                carrier.give_up(message.call)
            del future  # else its error would keep it alive through this frame

    def post(self, message: Message, reply: Reply, at: float = NEVER) -> Carrier:
        """Send a request, and call `reply` with the outcome; return what a waiter can drive.

        Does not block, not even to open a connection.
        """
        pipe = self._pipe
        if pipe is None or pipe.lost is not None:
            if self._transport is not None:
                self._transport.check(self, message)
            with self._lock:
                pipe = self._pipe  # another thread may have opened it meanwhile
                if pipe is None or pipe.lost is not None:
                    return self._when_open(lambda pending: pending.post(message, reply, at))
        pipe.post(message, reply, at)
        return pipe

    def complete(self, call: int, answer: Message | Exception) -> None:
        """Complete a call that is under way by the pipe. For a `MessageTransport`."""
        pipe = self._pipe
        if pipe is not None:
            pipe.complete(call, answer)

    def transmit(self, message: Message) -> None:
        """Send a message that is in no table, once a connection is open. Does not block."""
        pipe = self._pipe
        if pipe is None or pipe.lost is not None:
            with self._lock:
                pipe = self._pipe
                if pipe is None or pipe.lost is not None:
                    self._when_open(lambda pending: pending.note(message))
                    return
        pipe.transmit(message)

    def reset(self, why: str) -> None:
        """Close all connections to the peer, which may well be alive; new ones can be opened."""
        self._end(self._error(why))

    def _error(self, why: object) -> PeerLost:
        info = self.contact.info
        return PeerLost(f"{info}: {why}", peer=info.name, incarnation=self.contact.incarnation)

    def _end(self, error: PeerLost) -> None:
        """Close all connections; the calls on them fail with this error."""
        with self._lock:
            connections, self._connections = self._connections, set()
            pipe, self._pipe, self._pipe_connection = self._pipe, None, None
            pending, self._pending = self._pending, None
        self._idle.clear()
        for carrier in (pipe, pending):
            if carrier is not None:
                carrier.close(error)
        for connection in connections:
            connection.close()

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The connections to it."""
        with self._lock:
            return tuple(self._connections)

    @property
    def under_way(self) -> int:
        """How many calls to it have no reply yet."""
        with self._lock:
            pipe, pipe_connection = self._pipe, self._pipe_connection
            direct = len(self._connections - {pipe_connection}) - len(self._idle)
            waiting = 0 if self._pending is None else self._pending.waiting
        return max(0, direct) + waiting + (0 if pipe is None else pipe.under_way[0])

    def lose(self, why: str) -> PeerLost:
        """Give the peer up: every call that waits for it fails now. Idempotent."""
        with self._lock:
            if self.lost is not None:
                return self.lost
            self.lost = lost = self._error(why)
        self._end(lost)
        self._dialer.stop(lost)
        return lost

    def expire(self, now: float) -> bool:
        """End exchanges that are late (PE-6); return whether to call this again."""
        with self._lock:
            busy = [connection for connection in self._connections if connection.limit != NEVER]
        for connection in busy:
            if connection.limit <= now - LATE_S:
                connection.shut()
        self._quiet = 0 if busy else self._quiet + 1
        if self._quiet >= _QUIET_ROUNDS:
            self._watched = False
            with self._lock:  # check again: a new exchange may have seen `_watched` still set
                self._watched = any(connection.limit != NEVER for connection in self._connections)
        return self._watched

    def _gone(self, error: OSError) -> PeerLost:
        """Return the error for a broken connection: the peer's loss, if it is lost."""
        return self._error(error) if self.lost is None else self.lost.anew()

    def _send(self, message: Message, at: float) -> Connection | None:
        """Send on an idle connection, or on a new one; return it. None if all are in use.

        The peer may have closed an idle connection unnoticed. The callee does not run a message
        that was not sent whole, so it is sent again.
        """
        small = encode_small(message)
        while True:
            try:
                connection, new = self._idle.pop(), False
            except IndexError:
                opened, new = self._open_direct(at), True
                if opened is None:
                    return None
                connection = opened
            try:
                connection.set_limit(at)
                if small is None:
                    connection.send(message)
                else:
                    connection.send_small(small)
                return connection
            except BaseException as error:
                self._discard(connection)
                if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                    raise
                if new:
                    raise self._gone(error) from None

    def _discard(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.close()

    def _when_open(self, wait: Callable[[PendingPipe], bool]) -> PendingPipe:
        """Queue a message for the pipe that is being opened; begin to open one if none is.

        With the lock held.
        """
        if self.lost is not None:
            raise self.lost.anew()
        pending = self._pending
        if pending is None or not wait(pending):
            name = f"holdfast-rpc-{self._name}-open"
            pending = PendingPipe(name, self._open_pipe, self._background)
            wait(pending)
            try:
                pending.start()
            except RuntimeError as error:
                raise Overloaded(f"{self.contact.info}: {error}") from None
            self._pending = pending
        return pending

    def _open_pipe(self) -> Pipe:
        connection = self._open(Purpose.PIPE, NEVER)
        over: Connection | None = connection
        with self._lock:
            pipe = self._pipe
            if pipe is not None and pipe.lost is None:
                pass  # another thread was faster
            else:
                over = self._pipe_connection
                pipe = self._pipe = self._make_pipe(connection)
                self._pipe_connection = connection
            lost = self.lost
        if lost is not None:
            pipe.close(lost)  # without the lock: the callbacks may make new calls
        if over is not None:
            self._discard(over)
        return pipe

    def _make_pipe(self, connection: Connection) -> Pipe:
        background, gone, clock = self._background, self._gone, self._clock
        transport = self._transport
        if transport is None:
            return Pipe(connection, background, gone, clock)
        send, receive = partial(transport.send, self), partial(transport.receive, self)
        return Pipe(connection, background, gone, clock, send=send, receive=receive)

    def _open_direct(self, at: float) -> Connection | None:
        """Open a connection for synchronous calls; None if there are DIRECT_MAX of them.

        With a transport, there are none: all messages pass through it by the pipe.
        """
        with self._lock:
            direct = len(self._connections - {self._pipe_connection})
            if direct + self._to_open >= DIRECT_MAX or self._transport is not None:
                return None
            self._to_open += 1
        try:
            return self._open(Purpose.DIRECT, at)
        finally:
            with self._lock:
                self._to_open -= 1

    def _open(self, purpose: Purpose, at: float) -> Connection:
        """Open a connection, unless the peer was given up."""
        connection = self._dialer.open(purpose, at)
        with self._lock:
            if self.lost is None:
                self._connections.add(connection)
                connection.watched = purpose is Purpose.DIRECT
                return connection
        connection.close()
        raise self.lost.anew()


def _complete(future: Future[Message], answer: Message | Exception) -> None:
    """Complete the future of a reply that is not loaded yet."""
    if isinstance(answer, PeerLost):
        answer = answer.anew()  # many calls receive the same one
    if isinstance(answer, Message):
        future.set_result(answer)
    else:
        future.set_exception(answer)
