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
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, TypeAlias, assert_never

from holdfast.errors import Fenced, LeaseLost, PeerViolation, UsageError
from holdfast.ids import LeaseId, SessionId
from holdfast.net.frames import FRAME_BYTES_MAX
from holdfast.store.clients import ClientConnection, ClientSession, OpenWatch, Parked
from holdfast.store.keyspace import Keyspace
from holdfast.store.messages import (
    CALLS_MAX,
    WATCHES_MAX,
    Call,
    CallFailure,
    Cancel,
    Changed,
    Hello,
    Parting,
    Ping,
    Pong,
    Reply,
    WatchClose,
    WatchOpen,
    WatchSnapshot,
    Welcome,
    Why,
    decode_from_client,
    encode,
)
from holdfast.store.ops import (
    WRITES,
    AnyOp,
    Change,
    Entry,
    Get,
    Lease,
    LeaseGrant,
    LeaseKeep,
    ListPrefix,
    Wait,
)
from holdfast.store.pending import Pending
from holdfast.store.wire import encode_result

__all__ = ["LINGERING_MAX", "LINGER_S", "Effect", "Hangup", "SendFrame", "Service", "ServiceStatus"]

LINGER_S = 120.0
LINGERING_MAX = 16_384
LINGERS_SWEPT = 64
SNAPSHOT_BYTES = 1024 * 1024
ANSWERS_BYTES_MAX = 64 * 1024 * 1024


class SendFrame(NamedTuple):
    """Send a frame to a connection."""

    connection: int
    payload: bytes


class Hangup(NamedTuple):
    """Close a connection."""

    connection: int
    reason: str


Effect: TypeAlias = SendFrame | Hangup


class ServiceStatus(NamedTuple):
    """A snapshot for people and metrics."""

    keys: int
    revision: int
    sessions: int
    connections: int
    waits: int
    watches: int
    calls: int


_Index: TypeAlias = defaultdict[str, dict[OpenWatch, None]]


class Service:
    """The machine. Connections are named by numbers that the shell chooses."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.keyspace = Keyspace()
        self._sessions: dict[SessionId, ClientSession] = {}
        self._connections: dict[int, ClientConnection] = {}
        # When each session without a connection is forgotten, the soonest first.
        self._lingering: dict[SessionId, float] = {}
        # Dicts used as sets, because the order of a set differs from run to run.
        self._waits: defaultdict[str, dict[Parked, None]] = defaultdict(dict)
        self._watches_of_key: _Index = defaultdict(dict)
        self._watches_of_prefix: _Index = defaultdict(dict)
        self._effects: list[Effect] = []
        self.queued_bytes = 0  # how much the effects not taken yet would send
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
        conn = self._connections.get(connection)
        session = self._detach(connection)
        if session is not None:
            died = by_peer and conn is not None and not conn.parting
            for lease, linger in session.lingers.items() if died else ():
                self.keyspace.curtail(lease, now + linger)
            self._lingering[session.id] = now + LINGER_S
            if len(self._lingering) > LINGERING_MAX:
                self._forget(next(iter(self._lingering)))

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
        self.keyspace.expire(now)
        self._publish()
        for session_id, at in list(self._lingering.items()):
            if at > now:
                break
            self._forget(session_id)

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
        session = self._sessions.get(hello.session)
        resumed = session is not None and session.resumable
        if session is None:
            # A client that has met this life had a session here, which is forgotten. Until it
            # knows, by a Welcome that may get lost, every Welcome must tell it.
            resumable = hello.incarnation != self.incarnation
            session = ClientSession(hello.session, hello.floor, resumable)
            self._sessions[hello.session] = session
        elif session.id not in self._lingering:  # SV-3
            self._effects.append(Hangup(session.connection, "the client connected anew"))
            self._detach(session.connection)
        self._lingering.pop(session.id, None)
        session.connection = conn.id
        conn.session = session
        self._settle(session, hello.floor)
        self._revive(session, now)
        self._send(conn.id, encode(Welcome(self.incarnation, resumed)))

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
        """End a connection, with its watches and parked waits; return whose it was."""
        conn = self._connections.pop(connection, None)
        if conn is None:
            return None  # taken over, or never introduced
        for watch in list(conn.watches):
            self._close_watch(conn, watch)
        if conn.session is not None:
            for number in list(conn.session.parked):
                self._unpark(conn.session, number)
        return conn.session

    def _forget(self, session_id: SessionId) -> None:
        del self._lingering[session_id]
        del self._sessions[session_id]

    def _settle(self, session: ClientSession, floor: int) -> None:
        """Forget what the client no longer asks for."""
        if floor <= session.floor:
            return
        session.floor = floor
        for number in [n for n in session.answers if n < floor]:
            session.answers_bytes -= len(session.answers.pop(number))

    # Calls.

    def _call(self, session: ClientSession, number: int, ack: int, op: AnyOp, now: float) -> None:
        self._settle(session, ack)
        write = isinstance(op, WRITES)
        if write:  # SV-1
            if number < session.floor:
                return  # a late copy of a write that is settled
            known = session.answers.get(number)
            if known is not None:
                self._send(session.connection, known)
                return
        elif number in session.parked:
            return  # a copy of a wait that still waits
        if len(session.answers) + len(session.parked) >= CALLS_MAX:
            raise PeerViolation(f"more than {CALLS_MAX} unsettled calls")
        if write and session.answers_bytes >= ANSWERS_BYTES_MAX:
            raise PeerViolation(f"more than {ANSWERS_BYTES_MAX} bytes of unsettled answers")
        self._calls += 1
        if isinstance(op, Wait) and self._park(session, number, op, now):
            return
        answer = self._perform(session, number, op, now)
        if write:
            session.answers[number] = answer
            session.answers_bytes += len(answer)
        self._send(session.connection, answer)
        self._publish()

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

    def _reply(self, number: int, op: AnyOp, result: object) -> bytes:
        size = _bytes_in(result)  # judged before it is copied: a key may be asked for many times
        if size <= FRAME_BYTES_MAX:
            answer = encode(Reply(number, encode_result(op, result)))
            size = len(answer)
            if size <= FRAME_BYTES_MAX:
                return answer
        text = f"the answer would take {size} bytes, at most {FRAME_BYTES_MAX} fit"
        return encode(CallFailure(number, Why.USAGE, text))

    # Waits.

    def _park(self, session: ClientSession, number: int, op: Wait, now: float) -> bool:
        self.keyspace.expire(now)
        missing = set(self.keyspace.missing(op.keys))
        if not missing:
            return False
        parked = Parked(session, number, op, missing)
        session.parked[number] = parked
        for key in op.keys:
            self._waits[key][parked] = None
        self._publish()  # of what expired
        return True

    def _unpark(self, session: ClientSession, number: int) -> Parked | None:
        parked = session.parked.pop(number, None)
        if parked is not None:
            for key in parked.op.keys:
                waiting = self._waits[key]
                waiting.pop(parked, None)
                if not waiting:
                    del self._waits[key]
        return parked

    def _cancel(self, session: ClientSession, number: int) -> None:
        parked = self._unpark(session, number)
        if parked is not None:
            missing = tuple(key for key in parked.op.keys if key in parked.missing)
            # Without a text it is no longer than the call was, so it fits into a frame.
            self._send(session.connection, encode(CallFailure(number, Why.CANCELLED, "", missing)))

    # Watches.

    def _open_watch(self, conn: ClientConnection, message: WatchOpen, now: float) -> None:
        if message.watch in conn.watches:
            raise PeerViolation(f"watch {message.watch} is open already")
        if len(conn.watches) >= WATCHES_MAX:
            raise PeerViolation(f"more than {WATCHES_MAX} watches")
        key, prefix = message.key, message.prefix
        watch = OpenWatch(conn, message.watch, key, prefix, Pending(key, prefix))
        if prefix:
            entries = self.keyspace.apply(ListPrefix(key), now)
        else:
            found = self.keyspace.apply(Get(key), now)
            entries = () if found is None else (found,)
        self._publish()  # what expired belongs to the others, not to this watch
        conn.watches[watch.id] = watch
        self._index(watch)[key][watch] = None
        part, size = [], 0
        for entry in entries:
            part.append(entry)
            size += len(entry.key) + len(entry.value)
            if size > SNAPSHOT_BYTES:
                snapshot = WatchSnapshot(watch.id, False, self.keyspace.revision, tuple(part))
                self._send(conn.id, encode(snapshot))
                part, size = [], 0
        last = WatchSnapshot(watch.id, True, self.keyspace.revision, tuple(part))
        self._send(conn.id, encode(last))

    def _close_watch(self, conn: ClientConnection, watch_id: int) -> None:
        watch = conn.watches.pop(watch_id, None)
        if watch is not None:
            index = self._index(watch)
            index[watch.key].pop(watch, None)
            if not index[watch.key]:
                del index[watch.key]

    def _index(self, watch: OpenWatch) -> _Index:
        return self._watches_of_prefix if watch.prefix else self._watches_of_key

    # Changes.

    def _publish(self) -> None:
        """Tell waits and watches what changed."""
        for change in self.keyspace.take_changes():
            if change.key in self._waits:
                self._tell_waits(change)
            if change.key in self._watches_of_key:
                self._tell_watches(self._watches_of_key[change.key], change)
            for prefix, watches in self._watches_of_prefix.items():
                if change.key.startswith(prefix):
                    self._tell_watches(watches, change)

    def _tell_waits(self, change: Change) -> None:
        for parked in list(self._waits[change.key]):
            if change.value is None:
                parked.missing.add(change.key)
                continue
            parked.missing.discard(change.key)
            entries = None if parked.missing else self.keyspace.ready(parked.op.keys)
            if entries is not None:  # None: gone again by a change that is told next
                self._unpark(parked.session, parked.number)
                answer = self._reply(parked.number, parked.op, entries)
                self._send(parked.session.connection, answer)

    def _tell_watches(self, watches: dict[OpenWatch, None], change: Change) -> None:
        payloads: dict[int, bytes] = {}  # clients tend to use the same few watch numbers
        for watch in watches:
            if watch.connection.congested:
                watch.pending.offer((change,))  # SV-5
                continue
            payload = payloads.get(watch.id)
            if payload is None:
                payload = payloads[watch.id] = encode(Changed(watch.id, change))
            self._send(watch.connection.id, payload)

    def _send(self, connection: int, payload: bytes) -> None:
        self._effects.append(SendFrame(connection, payload))
        self.queued_bytes += len(payload)


def _bytes_in(result: object) -> int:
    """Return how many bytes the values of a result take, at least."""
    entries = result if type(result) is tuple else (result,)
    return sum(len(entry.value) for entry in entries if isinstance(entry, Entry))
