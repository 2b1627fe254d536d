"""One member of a replicated store as a machine: the service, its log, and its clients.

Rule 1: what a client of a store with several members gets is decided here, in `service.py` and in
    `keyspace.py`; what the members agree on is decided in `raft/`.
Rule 2: this file does no I/O and reads no clock. The shell feeds it what happens, and after each
    call performs what `take_effects()` returns.

Theory. Everything that changes the service goes through the log as a command, and every member
applies the same commands in the same order: so each has the same keys, leases and sessions, and
with them the memory of answers that makes a write exactly-once. The member that leads serves the
clients. A write is answered when it is applied, which means that a majority has it; a read when the
leader is sure that it still leads (a read index), from the state that is applied then. Waits and
watches are told what is applied. A member that does not lead tells its clients where the leader is.

Time is part of the log: each batch of commands carries the leader's idea of the store's time, and
leases end by that time only, when a batch is applied. A new leader goes on from the time that the
log has reached, so the time without a leader does not count, and gives every lease its whole time
again, because clients need some of it to find the new leader. So a lease may end late by as much as
an election takes and its own time, but never early.

A member that steps down closes its clients' connections. What they had asked for may be lost or
come to pass; they ask again under the same numbers, at the new leader.

Guarantees
    MB-1  A write that was answered is kept while a majority of the voters lives, and is performed
          once, however often it is sent and to however many leaders.
    MB-2  A read, and the state that a watch begins with, hold all that was answered before it was
          asked for, by any member.
    MB-3  A lease never ends before its time has passed since its leader took the request that
          granted or kept it, unless it was revoked, or curtailed because its client died.
    MB-4  What clients are told, by answers, waits or watches, is never taken back.
    MB-5  A member that does not lead serves no client: it names the leader, if it knows one.
    MB-6  What waits for the log is bounded by Raft's limits (RF-11), and reads by READS_BYTES_MAX.
          Of the applied log KEPT_ENTRIES are kept at least, and at most twice as many, or as many
          as fit into KEPT_BYTES. MEMBERS_MAX members may join.
"""

from __future__ import annotations

import random
from typing import assert_never

from holdfast.errors import PeerViolation
from holdfast.store.effects import ServiceStatus
from holdfast.store.messages import (
    Call,
    Hello,
    Members,
    Parting,
    Ping,
    Welcome,
    decode_from_client,
)
from holdfast.store.ops import WRITES
from holdfast.store.raft.effects import (
    Became,
    Committed,
    NeedSnapshot,
    RaftEffect,
    ReadReady,
    Restored,
    Role,
    SendMessage,
)
from holdfast.store.raft.machine import Raft
from holdfast.store.raft.messages import ChangeKind, Configuration, LogEntry, Message
from holdfast.store.replica.care import LOST_S
from holdfast.store.replica.commands import (
    ClientDied,
    ClientWrote,
    Command,
    LeaderBegan,
    MemberAnnounced,
    SessionForgotten,
    SessionOpened,
    decode_batch,
    encode_batch,
)
from holdfast.store.replica.effects import MemberEffect, SendToMember, Tell
from holdfast.store.replica.kept import KeptEntries
from holdfast.store.replica.membership import StoreMembership
from holdfast.store.replica.reads import ReadQueue
from holdfast.store.replica.state import StoreState, decode_state, encode_state
from holdfast.store.replica.store_time import StoreTime
from holdfast.store.service import Service

__all__ = ["TICK_S", "Replica"]

TICK_S = 0.1
"""How often Raft's clock ticks: a leader is missed after 1 to 2 seconds."""

_AT_ONCE_BYTES = 1024 * 1024


class Replica(StoreMembership):
    """The machine. It has the methods of `Service` that a shell calls, and those of a member."""

    def __init__(
        self,
        service: Service,
        member: int,
        address: str,
        rng: random.Random,
        now: float,
        *,
        founder: bool,
        owner: int = 0,
    ) -> None:
        founders = Configuration((member,)) if founder else None
        super().__init__(service, Raft(member, founders, rng), now)
        self._places.put(member, address, owner)
        self._time = StoreTime(now if founder else 0.0)
        self._next_tick = now
        self._kept = KeptEntries()
        self._timed = 0.0  # the store's time that was last put into the log
        self._greeting: set[int] = set()  # connections whose Hello is on its way
        self._members_changed = False
        self._reads = ReadQueue()
        if founder:
            self._raft.campaign()

    # What clients do.

    def connect(self, connection: int) -> None:
        """Hear of a new connection whose peer has proved itself."""
        self.service.connect(connection)

    def receive(self, connection: int, payload: bytes, now: float) -> None:
        """Take a client's frame. PeerViolation means: close it, then call `disconnect`."""
        self._now = now
        conn = self.service.connection(connection)
        if conn is None:
            return  # closed meanwhile
        if not self.leads:
            self._turn_away(connection)
            return
        message = decode_from_client(payload)
        if conn.session is None:
            if not isinstance(message, Hello) or connection in self._greeting:
                raise PeerViolation("the first message must be Hello, and the next come after it")
            self._greeting.add(connection)
            self._commands.append(SessionOpened(message, connection))
            return
        match message:
            case Call(op=op) if isinstance(op, WRITES):
                self.service.check_room(conn.session, write=True)
                self._commands.append(ClientWrote(conn.session.id, payload))
            case Hello():
                raise PeerViolation("a second Hello")
            case Ping() | Parting():
                self.service.handle(conn, conn.session, message, self._time.reached)
            case Call(number, _, op):  # what is settled is the log's to say: without `ack`
                self._reads.add(connection, Call(number, 0, op), len(payload))
            case _:
                self._reads.add(connection, message, len(payload))

    def disconnect(self, connection: int, now: float, *, by_peer: bool = True) -> None:
        """Hear that a connection is over, `by_peer` that its other end closed it."""
        self._now = now
        self._greeting.discard(connection)
        died = self.service.drop(connection, now, by_peer=by_peer)
        if died is not None:
            self._commands.append(ClientDied(died))

    def congest(self, connection: int) -> None:
        """Hear that a connection's peer does not keep up."""
        self.service.congest(connection)

    def relieve(self, connection: int) -> None:
        """Hear that everything queued for a congested connection has left."""
        self.service.relieve(connection)

    # What members do.

    def step(self, message: Message, now: float) -> None:
        """Take a message of another member."""
        self._now = now
        self._care.heard(message.sender, now)
        self._raft.step(message)

    def unreachable(self, member: int) -> None:
        """Hear that a connection to or from a member was lost: what was said last may be, too."""
        self._raft.unreachable(member)

    def knows(self, member: int) -> bool:
        """Say whether a process may be a member: a leader knows, once it has begun."""
        return not self._time.passes or member in self.configuration.members

    # Time.

    def tick(self, now: float) -> None:
        """Let time pass."""
        self._now = now
        if now >= self._next_tick:
            if now - self._next_tick > LOST_S / 2:
                self._care.begin_anew()  # this process has slept: it could not hear the others
            self._next_tick = now + TICK_S
            self._raft.tick()
            if self._leads_still():
                self._look_after()

    def next_wake(self) -> float:
        """Return when `tick` is due."""
        return self._now if self._is_runnable() else self._next_tick

    def _look_after(self) -> None:
        """Do what a leader does from time to time: end leases, forget clients, replace members."""
        due = self.service.keyspace.next_expiry()
        if self._time.passes and due is not None and self._timed < due <= self._time.at(self._now):
            self._propose()
        for session in self.service.take_old_sessions(self._now):
            self._commands.append(SessionForgotten(session))
        self._tend()

    # What is wanted.

    @property
    def queued_bytes(self) -> int:
        """How much the effects that were not taken yet would send to clients."""
        return self.service.queued_bytes

    def take_effects(self) -> list[MemberEffect]:
        """Return what to perform, in order, and forget it."""
        while True:
            self._submit()
            effects = self._raft.take_effects()
            if not effects:
                break
            self._perform_all(effects)
        if self._members_changed:
            self._members_changed = False
            for connection in self.service.attached() if self.leads else ():
                self._say_members(connection)
        self._run_ready()
        if (index := self._kept.take_surplus()) is not None:  # MB-6
            self._raft.drop_log(index)
        effects_now, self._effects = self._effects, []
        # A session of a client that is not here has the connection 0.
        effects_now += [one for one in self.service.take_effects() if one.connection]
        return effects_now

    def status(self) -> ServiceStatus:
        """Return a snapshot of the numbers."""
        return self.service.status()

    # Raft.

    def _submit(self) -> None:
        """Put what clients asked for into the log, and ask whether reads may be performed."""
        if not self._leads_still():
            return
        if self._commands:
            self._propose()
        if self._members_changed:
            self._change_members()  # the next change, at once: an even number of voters is weak
        question = self._reads.ask()
        if question is not None:
            self._raft.read(b"%d" % question)

    def _propose(self) -> None:
        commands, self._commands = self._commands, []
        self._timed = self._time.at(self._now)
        why = self._raft.propose(encode_batch(self._timed, commands))
        if why is None:
            return
        for command in commands:
            match command:
                case SessionOpened(_, connection):
                    self.service.hang_up(connection, why, self._now)
                case ClientWrote(session_id, _):
                    self.service.hang_up_session(session_id, why, self._now)
                case SessionForgotten(session_id):
                    self.service.linger(session_id, self._now)
                case LeaderBegan() | ClientDied():
                    self._commands.append(command)
                case MemberAnnounced():
                    pass  # it asks again
                case _:
                    assert_never(command)

    def _perform_all(self, effects: list[RaftEffect]) -> None:
        confirmed = 0
        for effect in effects:
            match effect:
                case SendMessage(message):
                    where = self._places.of(message.to)
                    self._effects.append(SendToMember(message.to, where, message))
                case Committed(entry):
                    self._apply(entry)
                case ReadReady(_, context):
                    confirmed = max(confirmed, int(context))  # all committed is applied by the end
                case Restored(snapshot):
                    self._restore(decode_state(snapshot.data))
                case NeedSnapshot(member):
                    self._raft.send_snapshot(member, self._dump())
                case Became(role, term, leader, reason):
                    self._became(role, term, leader, reason)
                case _:
                    assert_never(effect)
        self._reads.confirm(confirmed)

    def _became(self, role: Role, term: int, leader: int | None, reason: str) -> None:
        if self._term is not None:
            self._step_down()
        if role is Role.LEADER:
            self._term = term
            self._care.begin_anew()
            self._mourned.clear()
            self.service.linger_all(self._now)
            self._commands.insert(0, LeaderBegan())
        named = "none" if leader is None else self._places.of(leader) or str(leader)
        self._effects.append(Tell(f"{role} in term {term}, leader {named}: {reason}"))

    def _step_down(self) -> None:
        """Close the connections of all clients, and forget what they asked for (MB-5)."""
        self._term = None
        self._time.follow()
        for connection in self.service.attached():
            self._turn_away(connection)
        for connection in self._greeting:
            self._turn_away(connection)
        self.service.stop_lingering()
        self._greeting.clear()
        self._commands.clear()
        self._reads.clear()

    def _turn_away(self, connection: int) -> None:
        leader = "" if self.leader == self.member else self._places.of(self.leader)
        self.service.say(connection, Members(False, leader, self.addresses()))
        self.service.hang_up(connection, "this member does not lead", self._now)

    # The log.

    def _apply(self, entry: LogEntry) -> None:
        self._kept.add(entry.index, len(entry.data))
        if entry.change is not None:
            self._members_changed = True
            if entry.change.kind is ChangeKind.REMOVE:
                self._places.remove(entry.change.member)
                self._care.removed(entry.change.member)
        if entry.data:
            batch = decode_batch(entry.data)
            self.service.expire(self._time.reach(batch.at))
            for command in batch.commands:
                self._perform(command, entry.term == self._term)

    def _perform(self, command: Command, is_ours: bool) -> None:
        """Apply a command; `is_ours` if this member has put it into the log, and still leads."""
        service, now = self.service, self._time.reached
        match command:
            case ClientWrote(session, _):
                service.write(session, command.call, now)
            case SessionOpened(hello, connection):
                resumed = service.open_session(hello, now)
                if is_ours and connection in self._greeting:
                    self._greeting.discard(connection)
                    service.attach(connection, hello.session)
                    self._say_members(connection)
                    service.say(connection, Welcome(service.incarnation, resumed))
            case ClientDied(session):
                service.curtail(session, now)
            case SessionForgotten(session):
                service.forget(session)
            case LeaderBegan():
                service.keyspace.renew_all(now)
                if is_ours:
                    self._time.lead(self._now)
            case MemberAnnounced(member, address, owner):
                self._places.put(member, address, owner)
            case _:
                assert_never(command)

    def _dump(self) -> bytes:
        service, time = self.service, self._time.reached
        sessions = service.sessions()
        return encode_state(
            StoreState(service.incarnation, time, self._places, sessions, service.keyspace)
        )

    def _restore(self, state: StoreState) -> None:
        self.service.restore(state.incarnation, state.sessions, state.keyspace)
        self._places, self._time = state.places, StoreTime(state.time)
        self._kept.clear()

    # Reads.

    def _is_runnable(self) -> bool:
        return any(map(self._takes_more, self._reads.ready()))

    def _takes_more(self, connection: int) -> bool:
        conn = self.service.connection(connection)
        return conn is not None and not conn.congested

    def _run_ready(self) -> None:
        """Perform the reads that may be, as far as each client keeps up with its answers."""
        service = self.service
        for connection in self._reads.ready():
            limit = service.queued_bytes + _AT_ONCE_BYTES  # the rest when this is on its way
            while self._takes_more(connection) and service.queued_bytes <= limit:
                message = self._reads.take(connection)
                conn = service.connection(connection)
                if message is None or conn is None or conn.session is None:
                    break
                try:
                    service.handle(conn, conn.session, message, self._time.reached)
                except PeerViolation as error:
                    service.hang_up(connection, str(error), self._now)
            if service.connection(connection) is None:
                self._reads.forget(connection)

    # Addresses.

    def _say_members(self, connection: int) -> None:
        here = self._places.of(self.member)
        self.service.say(connection, Members(True, here, self.addresses()))
