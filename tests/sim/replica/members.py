"""The members of a replicated store, and clients that look for its leader, in a simulated network.

A member is a shell around the product's own machines, `store/replica/machine.py` and
`store/replica/link.py`, as `store/server.py` and `store/replica/links.py` are. A process that comes
back after a crash is another member: it asks the others to let it join.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from holdfast.errors import PeerViolation
from holdfast.ids import LeaseId, new_session_id
from holdfast.store.effects import Hangup, SendFrame
from holdfast.store.raft.messages import Message
from holdfast.store.replica.effects import SendToMember, Tell
from holdfast.store.replica.joining import sign_of_life
from holdfast.store.replica.link import LinkStep, MemberLink
from holdfast.store.replica.machine import TICK_S, Replica
from holdfast.store.replica.messages import (
    ALIVE,
    ASK,
    Dismissal,
    JoinReply,
    JoinRequest,
    MemberHello,
    PartsReader,
    decode_answer,
    decode_first,
    decode_message,
    encode_answer,
    encode_first,
    encode_message,
    is_members_word,
    parts_of,
)
from holdfast.store.service import Service
from holdfast.store.session import Session
from holdfast.testing.faultplan import Crash
from holdfast.testing.network import Host, Link, Network
from tests.sim.store.actors import ClientProgram, Journal, is_loose

__all__ = ["MemberProgram", "Members", "RoamingClient", "is_loose_here"]

_LAST = 37  # first byte of the last part of a member's message
_JOIN_EVERY_S = 0.5


def is_loose_here(frame: bytes) -> bool:
    """Say whether a frame may be duplicated and reordered: Raft's messages may, too."""
    return frame[0] == _LAST or is_loose(frame)


class Members:
    """All lives of all members of a run, and what they did together."""

    def __init__(self, names: Sequence[str], network: Network) -> None:
        self.names = names
        self.lives: list[MemberProgram] = []
        self.lease_ends: dict[LeaseId, float] = {}
        self.leaders: set[int] = set()
        """The terms that had a leader."""
        self.redirects = 0
        self.network = network

    def leader(self) -> MemberProgram | None:
        """Return the live member that serves clients; the one of the latest term, if several do."""
        serving = [one for one in self.lives if one.alive and one.machine.leads]
        return max(serving, key=lambda one: one.machine._raft.state.term, default=None)

    def is_lost(self) -> bool:
        """Say whether a majority of the voters is gone, by the newest configuration that is known.

        One of two voters is enough for that: an odd number grows by way of an even one.
        """
        alive = {one.machine.member for one in self.lives if one.alive}
        newest = max(self.lives, key=lambda one: one.machine._raft.state.applied)
        configuration = newest.machine.configuration
        return len(alive.intersection(configuration.voters)) < configuration.quorum


class MemberProgram:
    """One life of one member."""

    def __init__(
        self, host: Host, journal: Journal, members: Members, rng: random.Random, rate: float
    ) -> None:
        self.host = host
        self._life = host.life
        self._journal = journal
        self._members = members
        self._rng = rng
        self._rate = rate
        founder = not members.lives
        incarnation = new_session_id(rng)
        number = rng.randrange(1, 1 << 40)
        service = Service(incarnation)
        self.machine = Replica(service, number, host.name, rng, self._now(), founder=founder)
        self._in: dict[int, Link] = {}
        self._readers: dict[int, PartsReader] = {}
        self._senders: dict[int, int] = {}
        self._clients: set[int] = set()
        self._out: dict[int, MemberLink] = {}
        self._out_links: dict[int, Link] = {}
        self._addresses: dict[int, str] = {}
        self._asking: Link | None = None
        self._leases: set[LeaseId] = set()
        members.lives.append(self)
        self._perform()
        host.call_later(TICK_S, self._tick)
        if not founder:
            host.call_later(0.0, self._ask_to_join)

    @property
    def alive(self) -> bool:
        """Say whether this process still runs."""
        return self.host.alive and self.host.life == self._life

    def _now(self) -> float:
        return self._journal.sim.now * self._rate

    # Links.

    def linked(self, link: Link) -> None:
        if link is self._asking:
            address = self.host.name
            link.send(encode_first(JoinRequest(self.machine.member, address)))
            return
        for number, out in self._out_links.items():
            if out is link:
                self._out[number].opened(self._now())
                link.send(encode_first(MemberHello(self.machine.member, number)))
                return
        self._in[link.id] = link

    def received(self, link: Link, frame: bytes) -> None:
        if link is self._asking:
            self._hear_reply(link, frame)
            return
        for number, out in self._out_links.items():
            if out is link:
                self._out[number].heard(self._now())
                answer = None if frame == ALIVE else decode_answer(frame)
                if isinstance(answer, Dismissal) and self.machine.dismiss(number, answer.why):
                    self._end()
                return
        try:
            self._serve(link, frame)
        except PeerViolation as error:
            self._journal.sim.note("member refuses", link, error)
            link.close()
            self.unlinked(link, str(error))
        self._perform()

    def _serve(self, link: Link, frame: bytes) -> None:
        machine, now = self.machine, self._now()
        if link.id in self._readers:
            if frame == ASK:
                link.send(sign_of_life(machine, self._senders[link.id]))
                return
            whole = self._readers[link.id].feed(frame)
            if whole is not None:
                machine.step(decode_message(whole), now)
            return
        if frame[0] == _LAST:
            return  # it has overtaken the first frame
        if link.id not in self._clients and is_members_word(frame):
            match decode_first(frame):
                case JoinRequest() as request:
                    link.send(encode_answer(machine.admit(request, now)))
                case MemberHello(sender, to):
                    if to != machine.member:
                        raise PeerViolation("meant for another life")
                    if not machine.knows(sender):
                        link.send(sign_of_life(machine, sender))
                        return
                    machine.unreachable(sender)
                    self._readers[link.id], self._senders[link.id] = PartsReader(), sender
            return
        if link.id not in self._clients:
            self._clients.add(link.id)
            machine.connect(link.id)
            self._members.redirects += not machine.leads
        machine.receive(link.id, frame, now)

    def unlinked(self, link: Link, reason: str) -> None:
        if link is self._asking:
            self._asking = None
            return
        for number, out in list(self._out_links.items()):
            if out is link:
                del self._out_links[number]
                self._out[number].closed(self._now())
                self.machine.unreachable(number)
                self._perform()
                return
        self._in.pop(link.id, None)
        self._readers.pop(link.id, None)
        if link.id in self._clients:
            self._clients.discard(link.id)
            self.machine.disconnect(link.id, self._now())
            self._perform()

    def _end(self) -> None:
        """End this process, since it is no member any more; another one is started soon."""
        now = self._journal.sim.now
        self._members.network.schedule(Crash(now, self.host.name, now + 1.0))

    # Joining.

    def _ask_to_join(self) -> None:
        if self.machine.member in self.machine.configuration.members:
            return
        if self._asking is not None:
            self._asking.close()
        others = [name for name in self._members.names if name != self.host.name]
        self._asking = self.host.connect(self._rng.choice(others))
        self.host.call_later(_JOIN_EVERY_S, self._ask_to_join)

    def _hear_reply(self, link: Link, frame: bytes) -> None:
        reply = decode_answer(frame)
        assert isinstance(reply, JoinReply)
        self.machine.learn(reply)
        self._asking = None
        link.close()

    # Time, and what the machine wants.

    def _tick(self) -> None:
        now = self._now()
        self.machine.tick(now)
        for number, address in self.machine.peers().items():
            self._addresses[number] = address
            self._out.setdefault(number, MemberLink()).want()
        for number, out in self._out.items():
            match out.tick(now):
                case LinkStep.DIAL:
                    self._out_links[number] = self.host.connect(self._addresses[number])
                case LinkStep.ASK:
                    self._out_links[number].send(ASK)
                case LinkStep.CLOSE:
                    self._out_links.pop(number).close()
                    out.closed(now)
                    self.machine.unreachable(number)
                case None:
                    pass
        self._perform()
        self.host.call_later(TICK_S, self._tick)

    def _send(self, number: int, address: str, message: Message) -> bool:
        self._addresses[number] = address
        if not self._out.setdefault(number, MemberLink()).want():
            return False
        for part in parts_of(encode_message(message)):
            self._out_links[number].send(part)
        return True

    def _perform(self) -> None:
        for effect in self.machine.take_effects():
            match effect:
                case SendFrame(connection, payload):
                    if link := self._in.get(connection):
                        link.send(payload)
                case Hangup(connection):
                    if link := self._in.pop(connection, None):
                        self._clients.discard(connection)
                        link.close()
                case SendToMember(number, address, message):
                    if not address or not self._send(number, address, message):
                        self.machine.unreachable(number)
                case Tell(text):
                    self._journal.sim.note(self.host.name, text)
        if self.machine.leads:
            self._members.leaders.add(self.machine._raft.state.term)
        held = self.machine.service.keyspace._leases.keys()
        if held != self._leases:
            for lease in self._leases - held:
                self._members.lease_ends.setdefault(lease, self._journal.sim.now)
            self._leases = set(held)


class RoamingClient(ClientProgram):
    """A client that was given the names of all members, and follows the leader."""

    def __init__(
        self,
        host: Host,
        journal: Journal,
        rng: random.Random,
        names: Sequence[str],
        *,
        reconnect_within_s: float,
    ) -> None:
        self._names = names
        self._last = ""
        super().__init__(host, journal, rng, reconnect_within_s=reconnect_within_s)
        self.session = Session(new_session_id(rng), ",".join(names), several=True)

    def target(self) -> str:
        members = self.session.members
        leader = "" if members is None else members.leader
        if leader and leader != self._last:
            self._last = leader
        else:
            self._last = self._rng.choice([name for name in self._names if name != self._last])
        return self._last

    def linked(self, link: Link) -> None:
        apart = self._apart_since
        super().linked(link)
        self._apart_since = apart

    def received(self, link: Link, frame: bytes) -> None:
        super().received(link, frame)
        if self.session.ready:
            self._apart_since = None
