"""The caller's side of one peer: connections to one incarnation of one worker.

A synchronous call takes an idle connection, or opens one, and reads its own reply from it. So as
many connections are open as calls were under way at once, and none is shared while it is used.

Guarantees
    PE-1  When the peer is given up, every call that waits for it fails at once.
    PE-2  A connection on which something failed is closed and never used again; the next call
          opens another one, as long as this incarnation is not given up.
    PE-3  At most CONNECTIONS_MAX connections are open, and at most IDLE_MAX of them idle; a call
          that would need more is refused with Overloaded.
    PE-4  An attempt to connect that fails or takes too long is made again until the deadline of
          the call, and each attempt has more time than the one before. A peer is lost if its lease
          ends, if its system reports that no process listens there, or if it refuses the
          connection; never because it is slow.
    PE-5  Nothing is sent to a Unix socket of another user, and the proof that we send is valid for
          no other worker.
    PE-6  An exchange ends at its limit, or LATE_S later if signals interrupt the thread that
          waits. The background reader enforces this while there are exchanges.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import weakref
from collections.abc import Callable

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
from holdfast.rpc.client.background_reader import BackgroundReader
from holdfast.rpc.client.connecting import PendingPipe
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.future import Driver
from holdfast.rpc.client.pipe import Pipe, Reply
from holdfast.rpc.wire.connection import NEVER, Connection, ConnectionEnded
from holdfast.rpc.wire.hello import Purpose, WorkerHello, decode_welcome
from holdfast.rpc.wire.messages import Message

__all__ = ["Peer"]

IDLE_MAX = 64
CONNECTIONS_MAX = 512
TRY_S = 5.0
"""How long the first attempt to connect may take, and …"""
AGAIN_S = 0.02
"""… how long to wait after it. Both double with each attempt …"""
LONGER_MAX = 8
"""… up to this multiple."""
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
    ) -> None:
        self.contact = contact
        self._me = me
        self._key = key.meant_for(contact.incarnation)
        self._background = background
        self._clock = clock
        # Popped and appended without the lock: each is one instruction.
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._to_open = 0  # connections that are being opened …
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # … and theirs, or older
        self._pipe: Pipe | None = None
        self._pipe_connection: Connection | None = None
        self._pending: PendingPipe | None = None
        self._lost: PeerLost | None = None
        self._watched = False  # whether the background reader calls `expire` …
        self._quiet = 0  # … and how often that has found no exchange under way
        self._told: dict[Reply, None] = {}  # called when the peer is lost; see `tell_of_loss`

    def exchange(self, message: Message, at: float = NEVER) -> Message:
        """Send a request and return its reply. Blocks; TimeoutError at the time `at`."""
        connection = self._send(message, at)
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
        self._put_back(connection)
        return answer

    def post(self, message: Message, reply: Reply, at: float = NEVER) -> Driver:
        """Send a request, and call `reply` with the outcome; return what a waiter can drive.

        Does not block, not even to open a connection.
        """
        pipe = self._pipe
        if pipe is None or pipe.lost is not None:
            with self._lock:
                pipe = self._pipe  # another thread may have opened it meanwhile
                if pipe is None or pipe.lost is not None:
                    return self._when_open(lambda pending: pending.post(message, reply, at))
        pipe.post(message, reply, at)
        return pipe

    def open(self, at: float) -> None:
        """Open the connection that `post` uses, if there is none. Blocks until `at` at most."""
        if self._pipe is None or self._pipe.lost is not None:
            self._open_pipe(at)

    def note(self, message: Message) -> None:
        """Send a message that has no reply, once a connection is open. Does not block."""
        pipe = self._pipe
        if pipe is None or pipe.lost is not None:
            with self._lock:
                pipe = self._pipe
                if pipe is None or pipe.lost is not None:
                    self._when_open(lambda pending: pending.note(message))
                    return
        pipe.note(message)

    def reset(self, why: str) -> None:
        """Close all connections to the peer, which may well be alive; new ones can be opened."""
        with self._lock:
            connections, self._connections = list(self._connections), set()
            pipe, self._pipe, self._pipe_connection = self._pipe, None, None
            pending, self._pending = self._pending, None
        self._idle.clear()
        info = self.contact.info
        error = PeerLost(f"{info}: {why}", peer=info.name, incarnation=self.contact.incarnation)
        if pipe is not None:
            pipe.close(error)
        if pending is not None:
            pending.close(error)
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

    @property
    def lost(self) -> PeerLost | None:
        """Why this incarnation was given up; None if it was not."""
        return self._lost

    def lose(self, why: str) -> PeerLost:
        """Give the peer up: every call that waits for it fails now. Idempotent."""
        info = self.contact.info
        lost = PeerLost(f"{info}: {why}", peer=info.name, incarnation=self.contact.incarnation)
        with self._lock:
            if self._lost is not None:
                return self._lost
            self._lost = lost
            connections, self._connections = list(self._connections), set()
            sockets = list(self._sockets)
            pipe, pending = self._pipe, self._pending
            told, self._told = list(self._told), {}
        self._idle.clear()
        if pipe is not None:
            pipe.close(lost)
        if pending is not None:
            pending.close(lost)
        for connection in connections:
            connection.close()
        for sock in sockets:  # of connections being opened: this wakes the threads that open them
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for tell in told:
            tell(lost.anew())
        return lost

    def tell_of_loss(self, reply: Reply) -> None:
        """Call `reply` when the peer is given up, or now if it was.

        For a request that waits though no message is under way, such as one dropped on purpose.
        """
        with self._lock:
            lost = self._lost
            if lost is None:
                self._told[reply] = None
        if lost is not None:
            reply(lost.anew())

    def tell_no_more(self, reply: Reply) -> None:
        """Undo `tell_of_loss`."""
        with self._lock:
            self._told.pop(reply, None)

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
        if self._lost is not None:
            return self._lost.anew()
        info = self.contact.info
        return PeerLost(f"{info}: {error}", peer=info.name, incarnation=self.contact.incarnation)

    def _send(self, message: Message, at: float) -> Connection:
        """Send on an idle connection, or on a new one; return it.

        The peer may have closed an idle connection unnoticed. The callee does not run a message
        that was not sent whole, so it is sent again.
        """
        while True:
            try:
                connection, new = self._idle.pop(), False
            except IndexError:
                connection, new = self._open(Purpose.DIRECT, at), True
            try:
                connection.set_limit(at)
                connection.send(message)
                return connection
            except BaseException as error:
                self._discard(connection)
                if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                    raise
                if new:
                    raise self._gone(error) from None

    def _put_back(self, connection: Connection) -> None:
        connection.limit = NEVER
        if len(self._idle) < IDLE_MAX and self._lost is None:
            self._idle.append(connection)
        else:
            self._discard(connection)

    def _discard(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.close()

    def _when_open(self, wait: Callable[[PendingPipe], bool]) -> PendingPipe:
        """Queue a message for the pipe that is being opened; begin to open one if none is.

        With the lock held.
        """
        if self._lost is not None:
            raise self._lost.anew()
        pending = self._pending
        if pending is None or not wait(pending):
            name = f"holdfast-rpc-{self._me.info.name}-open"
            pending = PendingPipe(name, self._open_pipe, self._background)
            wait(pending)
            try:
                pending.start()
            except RuntimeError as error:
                raise Overloaded(f"{self.contact.info}: {error}") from None
            self._pending = pending
        return pending

    def _open_pipe(self, at: float = NEVER) -> Pipe:
        connection = self._open(Purpose.PIPE, at)
        over: Connection | None = connection
        with self._lock:
            pipe = self._pipe
            if pipe is not None and pipe.lost is None:
                pass  # another thread was faster
            else:
                over = self._pipe_connection
                pipe = self._pipe = Pipe(connection, self._background, self._gone, self._clock)
                self._pipe_connection = connection
            lost = self._lost
        if lost is not None:
            pipe.close(lost)  # without the lock: the callbacks may make new calls
        if over is not None:
            self._discard(over)
        return pipe

    def _open(self, purpose: Purpose, at: float) -> Connection:
        """Open a connection, authenticate, and send its purpose."""
        contact, me = self.contact, self._me
        hello = WorkerHello(me.info.name, me.info.id, me.incarnation, contact.incarnation, purpose)
        with self._lock:
            if self._lost is not None:
                raise self._lost.anew()
            if len(self._connections) + self._to_open >= CONNECTIONS_MAX:
                raise Overloaded(
                    f"{contact.info}: {CONNECTIONS_MAX} calls to it are under way, the most"
                )
            self._to_open += 1
        try:
            connection = self._connect_until(hello, at)
        except BaseException:
            with self._lock:
                self._to_open -= 1
            raise
        with self._lock:
            self._to_open -= 1
            if self._lost is None:
                self._connections.add(connection)
                connection.watched = purpose is Purpose.DIRECT
                return connection
        connection.close()
        raise self._lost.anew()

    def _connect_until(self, hello: WorkerHello, at: float) -> Connection:
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
            connection.send_all([*connection.offer(), hello.encode()])
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
        info, text = self.contact.info, str(error)
        if _errno(error) in _SHORTAGES:
            return Overloaded(f"{info}: no connection can be opened: {text}")
        if not isinstance(error, ConnectionEnded):
            text = f"Connection closed by peer ({text})"
        return PeerLost(f"{info}: {text}", peer=info.name, incarnation=self.contact.incarnation)

    def _connect(self, deadline: Deadline) -> Connection:
        contact = self.contact
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
                sock.connect(self.contact.unix)
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
