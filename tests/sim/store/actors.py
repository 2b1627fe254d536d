"""A store's server and its clients as programs of a simulated network.

They are shells around the product's own machines, `store/service.py` and `store/session.py`, as
`store/server.py` and `store/client.py` are around the same; here the frames travel over simulated
links, and time is the simulation's. What they add is a record of what happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import (
    Fenced,
    HoldfastError,
    LeaseLost,
    PeerViolation,
    StoreUnavailable,
    Unavailable,
)
from holdfast.errors import TimeoutExpired as Expired
from holdfast.ids import LeaseId, new_session_id
from holdfast.store.effects import Hangup, SendFrame
from holdfast.store.messages import Welcome, decode_from_server
from holdfast.store.ops import (
    WRITES,
    AnyOp,
    Change,
    Entry,
    Get,
    LeaseGrant,
    LeaseKeep,
    LeaseRevoke,
    ListPrefix,
    Set,
    Wait,
)
from holdfast.store.service import Service
from holdfast.store.session import PendingCall, Session, WatchState
from holdfast.testing.checkers import UNKNOWN, Call
from holdfast.testing.network import Host, Link, Simulation, Timer

__all__ = [
    "LEASED",
    "SERVER",
    "ClientProgram",
    "Journal",
    "LeaseLife",
    "Running",
    "ServerProgram",
    "WatchRecord",
    "is_loose",
]

SERVER = "server"
LEASED = "l/"
"""Keys under this prefix hang on leases, and nothing else removes them."""

_DIAL_WITHIN_S = 2.0
_TICK_S = 1.0
_CANCEL_WITHIN_S = 1.0
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.01, 1.0
_CALL, _CANCEL, _WELCOME = 2, 3, 17  # first bytes of frames


def is_loose(frame: bytes) -> bool:
    """Say whether a frame may be duplicated and reordered: calls and their cancellation may."""
    return frame[0] in (_CALL, _CANCEL)


@dataclass(slots=True)
class LeaseLife:
    """What the server did to a lease, by its own clock."""

    ttl: float
    renewals: list[float]
    revoked: bool = False
    ended: float | None = None


@dataclass(slots=True)
class WatchRecord:
    """A watch and what it delivered."""

    client: ClientProgram
    state: WatchState
    changes: list[Change] = field(default_factory=list)
    closed: bool = False

    def read(self, most: int) -> None:
        """Read up to so many changes."""
        while most > 0 and (change := self.state.pending.take()) is not None:
            self.changes.append(change)
            most -= 1


class Journal:
    """What happened in a run, over all programs. Moments are numbers of events, in order."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.times: list[float] = []
        # By life of the server.
        self.calls: dict[int, list[Call]] = {}
        self.leases: dict[int, dict[LeaseId, LeaseLife]] = {}
        # When the end of a lease was first asked for, by life of the server.
        self.revokes: dict[tuple[int, LeaseId], int] = {}
        self.watches: list[WatchRecord] = []
        self.clients: list[ClientProgram] = []
        self.servers: list[ServerProgram] = []
        self.failures: list[str] = []
        self.begun = self.completed = self.unknown = self.cancelled = self.lost = 0

    def moment(self) -> int:
        """Return the number of a new moment, now."""
        self.times.append(self.sim.now)
        return len(self.times) - 1

    def fail(self, text: str) -> None:
        """Note that a promise was broken."""
        self.sim.note("VIOLATION", text)
        self.failures.append(f"at {self.sim.now:.3f} s: {text}")


class ServerProgram:
    """The server. Each life has its own keyspace and its own incarnation."""

    def __init__(self, host: Host, journal: Journal, rng: random.Random, *, slow: bool) -> None:
        self.service = Service(incarnation=new_session_id(rng))
        self.leases: dict[LeaseId, LeaseLife] = {}
        self._host = host
        self._life = host.life
        self._journal = journal
        self._rng = rng
        self._links: dict[int, Link] = {}
        self._wake: Timer | None = None
        self._wake_at: float | None = None
        self._lease_of_key: dict[str, LeaseId] = {}
        journal.servers.append(self)
        journal.leases[self.service.incarnation] = self.leases
        self._observe_keyspace()
        if slow:
            host.call_later(rng.uniform(1.0, 5.0), self._congest)

    @property
    def alive(self) -> bool:
        """Say whether this process still runs."""
        return self._host.alive and self._host.life == self._life

    def entries(self) -> tuple[Entry, ...]:
        """Return what the store holds."""
        return self.service.keyspace.apply(ListPrefix(""), self._now())

    def holding_leases(self) -> tuple[LeaseId, ...]:
        """Return the leases on which a key hangs."""
        return tuple(self._lease_of_key.values())

    def linked(self, link: Link) -> None:
        self._links[link.id] = link
        self.service.connect(link.id)

    def received(self, link: Link, frame: bytes) -> None:
        try:
            self.service.receive(link.id, frame, self._now())
        except PeerViolation as error:
            self._journal.sim.note("server refuses", link, error)
            link.close()
            self.unlinked(link, str(error))
            return
        self._perform()

    def unlinked(self, link: Link, reason: str) -> None:
        self._links.pop(link.id, None)
        self.service.disconnect(link.id, self._now())
        self._perform()

    def _now(self) -> float:
        return self._journal.sim.now

    def _perform(self) -> None:
        for effect in self.service.take_effects():
            link = self._links.get(effect.connection)
            match effect:
                case SendFrame(_, payload):
                    if link is not None:
                        link.send(payload)
                case Hangup():
                    if link is not None:
                        del self._links[effect.connection]
                        link.close()
        self._note_ends()
        due = self.service.next_wake()
        if due == self._wake_at:
            return
        if self._wake is not None:
            self._wake.cancel()
        self._wake, self._wake_at = None, due
        if due is not None:
            self._wake = self._host.call_later(max(0.0, due - self._now()), self._tick)

    def _tick(self) -> None:
        self._wake = self._wake_at = None
        self.service.tick(self._now())
        self._perform()

    def _congest(self) -> None:
        """Let one client not keep up for a while."""
        rng = self._rng
        if self._links:
            number = rng.choice(list(self._links))
            self.service.congest(number)
            self._host.call_later(rng.uniform(0.1, 3.0), self._relieve, number)
        self._host.call_later(rng.uniform(1.0, 5.0), self._congest)

    def _relieve(self, number: int) -> None:
        self.service.relieve(number)
        self._perform()

    # What the server did to leases.

    def _observe_keyspace(self) -> None:
        keyspace = self.service.keyspace
        apply = keyspace.apply

        def observe(op: Any, now: float) -> Any:
            result = apply(op, now)
            match op:
                case LeaseGrant(ttl):
                    self.leases[result.id] = LeaseLife(ttl, [now])
                case LeaseKeep(lease):
                    self.leases[lease].renewals.append(now)
                case LeaseRevoke(lease) if result:
                    self.leases[lease].revoked = True
                case Set(key, _, lease) if key.startswith(LEASED) and lease is not None:
                    self._lease_of_key[key] = lease
                case _:
                    pass
            return result

        keyspace.apply = observe  # type: ignore[method-assign]

    def _note_ends(self) -> None:
        """Note the leases whose keys are gone: nothing else removes these keys."""
        for key in self.service.keyspace.missing(self._lease_of_key):
            self.leases[self._lease_of_key.pop(key)].ended = self._now()


@dataclass(eq=False, slots=True)
class Running:
    """A call that is under way at a client."""

    call: PendingCall[Any]
    op: AnyOp
    called: int
    until: float
    then: Callable[[object], None]
    cancelled: int | None = None


class ClientProgram:
    """A client. `perform` and `watch` are its user's side; `journal` gets what came of them."""

    def __init__(
        self, host: Host, journal: Journal, rng: random.Random, *, reconnect_within_s: float
    ) -> None:
        self.host = host
        self.name = f"{host.name}.{host.life}"
        self.life = host.life
        self.session = Session(new_session_id(rng), SERVER)
        self.incarnation = 0
        """The life of the server that this client met first, and is bound to."""
        self.running: dict[Running, None] = {}
        self._journal = journal
        self._rng = rng
        self._reconnect_within_s = reconnect_within_s
        self._link: Link | None = None
        self._apart_since: float | None = 0.0  # None while a link is open
        self._tries = 0
        journal.clients.append(self)
        self._dial()
        host.call_later(_TICK_S, self._tick)

    @property
    def alive(self) -> bool:
        """Say whether this process still runs."""
        return self.host.alive and self.host.life == self.life

    @property
    def sound(self) -> bool:
        """Say whether it has a link on which nothing vanishes, and the server knows it there."""
        return self.session.ready and self._link is not None and self._link.sound

    # Its user's side.

    def now(self) -> float:
        """Return the time."""
        return self._journal.sim.now

    def perform(self, op: AnyOp, timeout: float, then: Callable[[object], None]) -> None:
        """Begin a call; `then` gets its result, or an error, or UNKNOWN."""
        journal = self._journal
        journal.begun += 1
        until = self.now() + timeout + 2 * _CANCEL_WITHIN_S
        running = Running(self.session.begin(op), op, journal.moment(), until, then)
        self.running[running] = None
        if isinstance(op, LeaseRevoke):
            journal.revokes.setdefault((self.incarnation, op.lease), running.called)
        self.host.call_later(timeout, self._deadline, running)
        self._flush()
        self._settle()

    def watch(self, key: str, prefix: bool) -> WatchRecord:
        """Open a watch."""
        record = WatchRecord(self, self.session.open_watch(key, prefix))
        self._journal.watches.append(record)
        self._flush()
        return record

    def close_watch(self, record: WatchRecord) -> None:
        """Close a watch."""
        record.closed = True
        self.session.close_watch(record.state)
        self._flush()

    # The shell.

    def linked(self, link: Link) -> None:
        if link is self._link:
            self._apart_since = None
            self.session.connected(self._journal.sim.now)
            self._flush()

    def received(self, link: Link, frame: bytes) -> None:
        if link is not self._link:
            return
        if frame[0] == _WELCOME and not self.incarnation:
            welcome = decode_from_server(frame)
            assert isinstance(welcome, Welcome)
            self.incarnation = welcome.incarnation
        try:
            self.session.receive(frame, self._journal.sim.now)
        except PeerViolation as error:
            self._journal.fail(f"{self.name}: the server broke the protocol: {error}")
            self._disconnect("violation")
            return
        except Unavailable as error:
            self._disconnect(str(error))
            return
        if self.session.ready:
            self._tries = 0
        self._settle()
        self._flush()

    def unlinked(self, link: Link, reason: str) -> None:
        if link is self._link:
            self._disconnect(reason)

    def _flush(self) -> None:
        if self._link is not None and self._link.open:
            for frame in self.session.take_output():
                self._link.send(frame)

    def _tick(self) -> None:
        link = self._link
        if link is not None and link.open and not self.session.tick(self._journal.sim.now):
            self._flush()
            self._disconnect("silent")
        self._flush()
        self._settle()
        self.host.call_later(_TICK_S, self._tick)

    def target(self) -> str:
        """Return the host to connect to."""
        return SERVER

    def _dial(self) -> None:
        if self._link is None and self.session.lost is None:
            self._link = self.host.connect(self.target())
            self.host.call_later(_DIAL_WITHIN_S, self._check_dial, self._link)

    def _check_dial(self, link: Link) -> None:
        if link is self._link and not link.open:
            self._disconnect("no answer")

    def _disconnect(self, reason: str) -> None:
        now = self._journal.sim.now
        link, self._link = self._link, None
        if link is not None:
            link.close()
        if self._apart_since is None:
            self._apart_since = now
        self.session.disconnected()
        if self.session.met and now - self._apart_since > self._reconnect_within_s:
            self.session.lose(f"no connection for {now - self._apart_since:.0f} s: {reason}")
        self._settle()
        pause = min(_PAUSE_MAX_S, _PAUSE_MIN_S * 2**self._tries) * self._rng.uniform(0.5, 1.0)
        self._tries += 1
        self.host.call_later(pause, self._dial)

    # Calls.

    def _settle(self) -> None:
        for running in [one for one in self.running if one.call.done]:
            self._finish(running)

    def _finish(self, running: Running) -> None:
        if self.running.pop(running, self) is self:
            return
        try:
            result: object = running.call.outcome()
        except HoldfastError as error:
            self._failed(running, error)
            return
        self._journal.completed += 1
        self._record(running.op, result, running.called)
        running.then(result)

    def _failed(self, running: Running, error: HoldfastError) -> None:
        """Note the failure; what is said not to have happened must not be seen."""
        journal = self._journal
        match error:
            case LeaseLost() | Fenced():
                journal.completed += 1
            case StoreUnavailable(maybe_applied=maybe):
                journal.lost += 1
                if maybe:
                    self._record(running.op, UNKNOWN, running.called)
            case Expired() if isinstance(running.op, Wait) and running.cancelled is not None:
                journal.cancelled += 1
                if not error.waiting_for:
                    journal.fail(f"{self.name}: {running.op} was cancelled, but nothing is missing")
                for key in error.waiting_for:
                    self._record(Get(key), None, running.cancelled)
            case _:
                journal.fail(f"{self.name}: {running.op} failed: {error!r}")
        running.then(error)

    def _record(self, op: AnyOp, result: object, called: int) -> None:
        journal = self._journal
        call = Call(self.name, op, result, called, journal.moment())
        journal.calls.setdefault(self.incarnation, []).append(call)
        journal.sim.note(call)

    def _deadline(self, running: Running) -> None:
        if running not in self.running:
            return
        if isinstance(running.op, Wait) and running.cancelled is None and self.session.ready:
            running.cancelled = self._journal.moment()
            self.session.cancel(running.call)
            self._flush()
            self.host.call_later(_CANCEL_WITHIN_S, self._deadline, running)
            return
        del self.running[running]
        if self.session.abandon(running.call):
            self._journal.unknown += 1
            self._record(running.op, UNKNOWN, running.called)
        running.then(UNKNOWN)

    def crashed(self) -> None:
        """Note, after the end, what this process left open when it died."""
        for running in self.running:
            if isinstance(running.op, WRITES):
                self._journal.unknown += 1
                self._record(running.op, UNKNOWN, running.called)
        self.running.clear()
