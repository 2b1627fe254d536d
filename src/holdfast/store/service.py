"""The store server as a machine: sessions, calls, waits and watches over one keyspace.

Rule 1: what a client of `tcp://` gets is decided in this file and in `keyspace.py` alone.
Rule 2: this file does no I/O and reads no clock. The shell feeds it what happens and performs
    what `take_effects()` returns, in order.

Theory. A client is a session, which outlives its connections. Its calls are numbered. A write's
answer is kept until the client says (by `ack`) that it has it, so a write that is sent again after
a lost connection is answered from there and performed once; a read is simply performed again. A
wait is parked with the set of its missing keys and answered when that set is empty. Parked waits
and watches end with their connection: a client that comes back asks for them anew. The server's
life has a random number, its incarnation: a client that finds another one knows that the keys it
wrote are gone.

Guarantees
    SV-1  A write is performed at most once for each (session, number), however often it arrives.
    SV-2  A call's effects and the answer that it gets are of the same moment.
    SV-3  A session has one connection: a newer one takes over, and the older one is closed.
    SV-4  A parked wait is answered as soon as all its keys exist at one moment.
    SV-5  A watch gets the state at one revision, then every later change, in order; while its
          connection is congested, changes to a key are merged and the newest is kept.
    SV-6  Memory for a client is bounded: CALLS_MAX unsettled calls, ANSWERS_BYTES_MAX of their
          answers (and one more), WATCHES_MAX watches; a session without a connection is forgotten
          after LINGER_S, or earlier if more than LINGERING_MAX linger. A client whose session was
          forgotten is told so. Of leases that ended at most LINGERS_SWEPT are remembered.
    SV-7  A lease that was granted with `linger` ends that long after its client's end closed the
          connection, unless the client comes back before; then it has its whole time again. It
          keeps its time if the client said that it lives (Parting), or this end closed it.
    SV-8  What a write changes is told to waits and watches before the write is answered: those
          have waited longer, and a write that has returned has been told.
"""

from __future__ import annotations

from typing import assert_never

from holdfast.errors import Fenced, LeaseLost, PeerViolation, UsageError
from holdfast.ids import LeaseId, SessionId
from holdfast.store.clients import ClientConnection, ClientSession
from holdfast.store.delivery import Delivery
from holdfast.store.effects import Effect, Hangup, ServiceStatus
from holdfast.store.keyspace import Keyspace
from holdfast.store.messages import (
    CALLS_MAX,
    Call,
    CallFailure,
    Cancel,
    Changed,
    FromClient,
    FromServer,
    Hello,
    Parting,
    Ping,
    Pong,
    WatchClose,
    WatchOpen,
    Welcome,
    Why,
    decode_from_client,
    encode,
)
from holdfast.store.ops import (
    WRITES,
    AnyOp,
    Lease,
    LeaseGrant,
    LeaseKeep,
    Wait,
)

__all__ = ["LINGERING_MAX", "LINGER_S", "Service"]

LINGER_S = 120.0
LINGERING_MAX = 16_384
LINGERS_SWEPT = 64

ANSWERS_BYTES_MAX = 64 * 1024 * 1024


class Service(Delivery):
    """The machine. Connections are named by numbers that the shell chooses."""

    def __init__(self, incarnation: int) -> None:
        super().__init__()
        self.incarnation = incarnation
        self._sessions: dict[SessionId, ClientSession] = {}
        self._connections: dict[int, ClientConnection] = {}
        # When each session without a connection is forgotten, the soonest first.
        self._lingering: dict[SessionId, float] = {}
        self._calls = 0

    # What happens.

    def connect(self, connection: int) -> None:
        """Hear of a new connection whose peer has proved itself."""
        self._connections[connection] = ClientConnection(connection)

    def receive(self, connection: int, payload: bytes, now: float) -> None:
        """Take one frame. PeerViolation means: close the connection, then call `disconnect`."""
        conn = self._connections.get(connection)
        if conn is None:
            return  # closed meanwhile
        message = decode_from_client(payload)
        session = conn.session
        if session is None:
            if not isinstance(message, Hello):
                raise PeerViolation("the first message must be Hello")
            self._hello(conn, message, now)
            return
        session.resumable = True  # it speaks, so it has read a Welcome
        self.handle(conn, session, message, now)

    def handle(
        self, conn: ClientConnection, session: ClientSession, message: FromClient, now: float
    ) -> None:
        """Take a message of a client that has said Hello."""
        match message:
            case Call():
                self._call(session, message.number, message.ack, message.op, now)
            case Cancel(number):
                self._cancel(session, number)
            case WatchOpen():
                self._open_watch(conn, message, now)
            case WatchClose(watch):
                self._close_watch(conn, watch)
            case Ping():
                self._send(conn.id, encode(Pong()))
            case Parting():
                conn.parting = True
            case Hello():
                raise PeerViolation("a second Hello")
            case _:
                assert_never(message)

    def disconnect(self, connection: int, now: float, *, by_peer: bool = True) -> None:
        """Hear that a connection is over, `by_peer` that its other end closed it.

        Its session stays for LINGER_S.
        """
        died = self.drop(connection, now, by_peer=by_peer)
        if died is not None:
            self.curtail(died, now)
        if len(self._lingering) > LINGERING_MAX:
            self._forget_old(now)

    def congest(self, connection: int) -> None:
        """Hear that a connection's peer does not keep up: merge its changes from now on."""
        if conn := self._connections.get(connection):
            conn.congested = True

    def relieve(self, connection: int) -> None:
        """Hear that everything queued for a congested connection has left: send the merged."""
        conn = self._connections.get(connection)
        if conn is None or not conn.congested:
            return
        conn.congested = False
        for watch in conn.watches.values():
            while (change := watch.pending.take()) is not None:
                self._send(conn.id, encode(Changed(watch.id, change)))

    def tick(self, now: float) -> None:
        """Let time pass: end leases, forget sessions."""
        self.expire(now)
        self._forget_old(now)

    def next_wake(self) -> float | None:
        """Return when `tick` is due, or None if nothing is."""
        expiry = self.keyspace.next_expiry()
        forget = next(iter(self._lingering.values()), None)
        if expiry is None or forget is None:
            return forget if expiry is None else expiry
        return min(expiry, forget)

    def take_effects(self) -> list[Effect]:
        """Return what to perform, in order, and forget it."""
        effects, self._effects = self._effects, []
        self.queued_bytes = 0
        return effects

    def status(self) -> ServiceStatus:
        """Return a snapshot of the numbers. Any thread may ask: the copies are made at once."""
        sessions, connections = list(self._sessions.values()), list(self._connections.values())
        return ServiceStatus(
            keys=len(self.keyspace),
            revision=self.keyspace.revision,
            sessions=len(sessions),
            connections=len(connections),
            waits=sum(len(session.parked) for session in sessions),
            watches=sum(len(conn.watches) for conn in connections),
            calls=self._calls,
        )

    # Sessions.

    def _hello(self, conn: ClientConnection, hello: Hello, now: float) -> None:
        resumed = self.open_session(hello, now)
        self.attach(conn.id, hello.session)
        self._send(conn.id, encode(Welcome(self.incarnation, resumed)))

    def attach(self, connection: int, session_id: SessionId) -> None:
        """Give a session this connection, instead of the one that it may have had (SV-3)."""
        conn, session = self._connections[connection], self._sessions[session_id]
        if session.connection:
            self._effects.append(Hangup(session.connection, "the client connected anew"))
            self._detach(session.connection)
        self._lingering.pop(session_id, None)
        session.connection = connection
        conn.session = session

    def drop(self, connection: int, now: float, *, by_peer: bool) -> SessionId | None:
        """End a connection; return the session if leases end because its client's end closed it."""
        conn = self._connections.get(connection)
        session = self._detach(connection)
        if conn is None or session is None:
            return None
        session.connection = 0
        self._lingering[session.id] = now + LINGER_S
        return session.id if by_peer and not conn.parting and session.lingers else None

    # For a member of a replicated store.

    def connection(self, connection: int) -> ClientConnection | None:
        """Return what is known of a connection, or None if it is over."""
        return self._connections.get(connection)

    def attached(self) -> list[int]:
        """Return the connections that sessions have."""
        return [s.connection for s in self._sessions.values() if s.connection]

    def is_connected(self, session_id: SessionId) -> bool:
        """Say whether a session has a connection."""
        session = self._sessions.get(session_id)
        return session is not None and bool(session.connection)

    def say(self, connection: int, message: FromServer) -> None:
        """Send a message to a connection."""
        self._send(connection, encode(message))

    def hang_up(self, connection: int, reason: str, now: float) -> None:
        """Close a connection, after all that was sent on it; its client may come back."""
        self._effects.append(Hangup(connection, reason))
        self.drop(connection, now, by_peer=False)

    def hang_up_session(self, session_id: SessionId, reason: str, now: float) -> None:
        """Close the connection of a session, if it has one."""
        session = self._sessions.get(session_id)
        if session is not None and session.connection:
            self.hang_up(session.connection, reason, now)

    def linger(self, session_id: SessionId, until: float) -> None:
        """Let a session be forgotten at this moment, unless its client comes back."""
        self._lingering[session_id] = until

    def linger_all(self, now: float) -> None:
        """Give the clients that are away time to come back."""
        away = (session.id for session in self._sessions.values() if not session.connection)
        self._lingering = dict.fromkeys(away, now + LINGER_S)

    def stop_lingering(self) -> None:
        """Leave it to another member to forget sessions."""
        self._lingering.clear()

    def sessions(self) -> tuple[ClientSession, ...]:
        """Return all sessions."""
        return tuple(self._sessions.values())

    def restore(
        self, incarnation: int, sessions: tuple[ClientSession, ...], keyspace: Keyspace
    ) -> None:
        """Begin with another state instead of this one, in which no client is connected."""
        self.incarnation = incarnation
        self._sessions = {session.id: session for session in sessions}
        self.keyspace = keyspace

    def _forget_old(self, now: float) -> None:
        for session_id in self.take_old_sessions(now):
            self.forget(session_id)

    def take_old_sessions(self, now: float) -> list[SessionId]:
        """Return, once, the sessions that are to be forgotten now (SV-6)."""
        surplus = len(self._lingering) - LINGERING_MAX
        old = [
            session_id
            for place, (session_id, at) in enumerate(self._lingering.items())
            if at <= now or place < surplus
        ]
        for session_id in old:
            del self._lingering[session_id]
        return old

    def _revive(self, session: ClientSession, now: float) -> None:
        """Keep the leases alive that would have ended with the lost connection (SV-7)."""
        self.keyspace.expire(now)
        for lease in list(session.lingers):
            if self.keyspace.has_lease(lease):
                self.keyspace.apply(LeaseKeep(lease), now)
            else:
                del session.lingers[lease]
        self._publish()

    def _detach(self, connection: int) -> ClientSession | None:
        """End a connection, with its watches and parked waits; return the session it served."""
        conn = self._connections.pop(connection, None)
        if conn is None:
            return None  # taken over, or never introduced
        for watch in list(conn.watches):
            self._close_watch(conn, watch)
        if conn.session is not None:
            for number in list(conn.session.parked):
                self._unpark(conn.session, number)
        return conn.session

    def _settle(self, session: ClientSession, floor: int) -> None:
        """Forget what the client no longer asks for."""
        if floor <= session.floor:
            return
        session.floor = floor
        for number in [n for n in session.answers if n < floor]:
            session.answers_bytes -= len(session.answers.pop(number))

    # What a log repeats at every member of a replicated store: nothing here is about connections.

    def open_session(self, hello: Hello, now: float) -> bool:
        """Make the session of a client or find it, and say whether it was known."""
        session = self._sessions.get(hello.session)
        resumed = session is not None and session.resumable
        if session is None:
            # A client that has met this life had a session here, which is forgotten. Until it
            # knows, by a Welcome that may get lost, every Welcome must tell it.
            resumable = hello.incarnation != self.incarnation
            session = ClientSession(hello.session, hello.floor, resumable)
            self._sessions[hello.session] = session
        self._settle(session, hello.floor)
        self._revive(session, now)
        return resumed

    def write(self, session_id: SessionId, call: Call, now: float) -> None:
        """Perform a write of a session, unless it was performed before (SV-1)."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.resumable = True
            self._settle(session, call.ack)
            if not self._answer_again(session, call.number):
                self._calls += 1
                self._finish(session, call.number, call.op, now)

    def curtail(self, session_id: SessionId, now: float) -> None:
        """Let the leases end that were granted with `linger`: their client has died (SV-7)."""
        session = self._sessions.get(session_id)
        for lease, linger in session.lingers.items() if session is not None else ():
            self.keyspace.curtail(lease, now + linger)

    def forget(self, session_id: SessionId) -> None:
        """Forget a session that has no connection."""
        self._sessions.pop(session_id, None)

    def expire(self, now: float) -> None:
        """End the leases whose time has come."""
        self.keyspace.expire(now)
        self._publish()

    # Calls.

    def _call(self, session: ClientSession, number: int, ack: int, op: AnyOp, now: float) -> None:
        self._settle(session, ack)
        write = isinstance(op, WRITES)
        if write:
            if self._answer_again(session, number):
                return
        elif number in session.parked:
            return  # a copy of a wait that still waits
        self.check_room(session, write=write)
        self._calls += 1
        if not (isinstance(op, Wait) and self._park(session, number, op, now)):
            self._finish(session, number, op, now)

    def check_room(self, session: ClientSession, *, write: bool) -> None:
        """Raise PeerViolation if a session has as many unsettled calls as it may (SV-6)."""
        if len(session.answers) + len(session.parked) >= CALLS_MAX:
            raise PeerViolation(f"more than {CALLS_MAX} unsettled calls")
        if write and session.answers_bytes >= ANSWERS_BYTES_MAX:
            raise PeerViolation(f"more than {ANSWERS_BYTES_MAX} bytes of unsettled answers")

    def _answer_again(self, session: ClientSession, number: int) -> bool:
        """Answer a write that was performed before, if the client still asks; else say False."""
        if number < session.floor:
            return True  # a late copy of a write that is settled
        known = session.answers.get(number)
        if known is None:
            return False
        self._send(session.connection, known)
        return True

    def _finish(self, session: ClientSession, number: int, op: AnyOp, now: float) -> None:
        answer = self._perform(session, number, op, now)
        if isinstance(op, WRITES):
            session.answers[number] = answer
            session.answers_bytes += len(answer)
        self._publish()  # SV-8
        self._send(session.connection, answer)

    def _perform(self, session: ClientSession, number: int, op: AnyOp, now: float) -> bytes:
        try:
            result = self.keyspace.apply(op, now)
            if isinstance(op, LeaseGrant) and isinstance(result, Lease) and op.linger is not None:
                self._linger(session, result.id, op.linger)
            return self._reply(number, op, result)
        except UsageError as error:
            return encode(CallFailure(number, Why.USAGE, str(error)))
        except LeaseLost as error:
            return encode(CallFailure(number, Why.LEASE_LOST, str(error)))
        except Fenced as error:
            return encode(CallFailure(number, Why.FENCED, str(error)))

    def _linger(self, session: ClientSession, lease: LeaseId, seconds: float) -> None:
        """Note that a lease ends with its connection; now and then, forget those that ended."""
        session.lingers[lease] = seconds
        if len(session.lingers) % LINGERS_SWEPT == 0:
            alive = self.keyspace.has_lease
            session.lingers = {each: s for each, s in session.lingers.items() if alive(each)}
