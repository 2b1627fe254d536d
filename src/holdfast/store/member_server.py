"""The part of a store server that is about members: it becomes one, serves others, and leaves.

The shell around what `replica/machine.py` says of members. A server begins alone. It becomes a
member when another process asks to join it, or when it joins others itself.

Guarantees
    SS-5  A leader that is closed hands over before, within HAND_OVER_WITHIN_S, if it can.
    SS-6  A member that has left by `leave` is missed by none: the others are complete without it.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Callable, Sequence

from holdfast.clock import Clock, Deadline
from holdfast.ids import new_session_id
from holdfast.net.address import Address
from holdfast.net.reactor import Reactor
from holdfast.store.replica.effects import MemberEffect, SendToMember, Tell
from holdfast.store.replica.joining import ask_to_join, ask_to_leave
from holdfast.store.replica.links import MemberLinks
from holdfast.store.replica.machine import Replica
from holdfast.store.replica.messages import JoinReply, JoinRequest, LeaveRequest
from holdfast.store.replica.policy import MEMBERS_MAX
from holdfast.store.service import Service

__all__ = ["MemberServer"]

_log = logging.getLogger("holdfast.store")

HAND_OVER_WITHIN_S = 1.0
LEAVE_AGAIN_S = 0.02


class MemberServer:
    """What `StoreServer` stands on; its reactor, connections and clients are there."""

    def __init__(
        self, address: Address, key: bytes, service: Service, rng: random.Random, clock: Clock
    ) -> None:
        self.address = address
        """Where it listens; after `start()` with the real port."""
        self.on_dismissed: Callable[[str], None] = lambda why: None
        """Called on the reactor's thread when this process is no member of its store any more."""
        self._key = key
        self._rng = rng
        self._clock = clock
        self._reactor: Reactor | None = None
        self._starting = threading.Lock()
        self._machine: Service | Replica = service
        self._owner = 0
        # Connections to other members, once there are some.
        self._links: MemberLinks | None = None
        self._joined, self._follows = threading.Event(), threading.Event()
        self._closing, self._parted = threading.Event(), threading.Event()

    def _bind(self) -> Reactor:
        raise NotImplementedError

    def _run(self, reactor: Reactor) -> None:
        raise NotImplementedError

    def _perform(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Stop serving and drop every connection. Idempotent."""
        raise NotImplementedError

    @property
    def announced(self) -> Address:
        """What others can connect to: "all addresses" is none."""
        everywhere = self.address.host in {"0.0.0.0", "::"}
        return self.address._replace(host=socket.gethostname()) if everywhere else self.address

    @property
    def members(self) -> tuple[str, ...]:
        """Where the members of the store are, as far as this one knows; one at least."""
        machine = self._machine
        return machine.addresses() if isinstance(machine, Replica) else (str(self.announced),)

    def join(
        self, addresses: tuple[Address, ...], timeout: float | None, *, most: int = MEMBERS_MAX
    ) -> None:
        """Start as one more member of the store that has members at these addresses.

        Blocks until this member has the state of the store. StoreUnavailable at the deadline, or
        if it is closed meanwhile; UsageError if there are `most` members already.
        """
        reactor = self._bind()
        machine = self._replicate(founder=False)
        request = JoinRequest(machine.member, str(self.announced), self._owner, most)
        self._run(reactor)
        reactor.call_soon(self._perform)
        deadline = Deadline.after(timeout, self._clock)
        try:
            ask_to_join(self, request, addresses, self._key, self._joined, self._closing, deadline)
        except BaseException:
            self.close()
            raise

    def belongs_to(self, owner: int) -> None:
        """Say which client is in the same process, by its session (see `replica/places.py`)."""
        self._owner = owner

        def tell() -> None:
            if isinstance(self._machine, Replica):
                self._machine.belongs_to(owner)
                self._perform()

        if self._reactor is not None:
            self._reactor.call_soon(tell)

    @property
    def leads(self) -> bool:
        """Say whether clients are served here, as far as this member knows."""
        machine = self._machine
        return not isinstance(machine, Replica) or machine.leads

    @property
    def alone(self) -> bool:
        """Say whether this is the only member, as far as it knows."""
        machine = self._machine
        return not isinstance(machine, Replica) or machine.configuration.members == (
            machine.member,
        )

    @property
    def deserted(self) -> bool:
        """Say whether all other members have died, by proof."""
        return isinstance(self._machine, Replica) and self._machine.is_deserted

    def leave(self, timeout: float | None) -> bool:
        """Be removed from the members, after handing over if this one leads.

        Blocks until that is so. False at the deadline, if this is the only member, or if all others
        have died.
        """
        deadline = Deadline.after(timeout, self._clock)
        while not deadline.passed() and not self._closing.is_set():
            machine, reactor = self._machine, self._reactor
            if not isinstance(machine, Replica) or reactor is None:
                return False
            if machine.is_gone:
                return True
            if self.alone or machine.is_deserted:
                return False
            reactor.call_soon(self._leave)
            if not machine.leads and ask_to_leave(machine.member, machine, self._key, deadline):
                return True
            self._closing.wait(LEAVE_AGAIN_S)
        return False

    def _part_with_members(self) -> None:
        """Hand over if this member leads, and say that the end of its connections is no death."""
        self._closing.set()
        reactor = self._reactor
        if reactor is not None and isinstance(self._machine, Replica):
            self._follows.clear()
            reactor.call_soon(self._hand_over)
            self._follows.wait(HAND_OVER_WITHIN_S)
            reactor.call_soon(self._part)
            self._parted.wait(HAND_OVER_WITHIN_S)

    # On the reactor's thread.

    def _now(self) -> float:
        return self._clock.monotonic()

    def _replicate(self, *, founder: bool) -> Replica:
        """Become a member of a replicated store; the service that is there goes on."""
        machine = self._machine
        if isinstance(machine, Replica):
            return machine
        member = new_session_id(self._rng)
        now, announced = self._now(), str(self.announced)
        self._machine = Replica(
            machine, member, announced, self._rng, now, founder=founder, owner=self._owner
        )
        return self._machine

    def _leave(self) -> None:
        if isinstance(self._machine, Replica):
            self._machine.leave()
            self._perform()

    def _part(self) -> None:
        if self._links is not None:
            self._links.part()
        self._parted.set()

    def _hand_over(self) -> None:
        machine = self._machine
        if not (isinstance(machine, Replica) and machine.hand_over()):
            self._follows.set()
        self._perform()

    def admit(self, request: JoinRequest) -> JoinReply:
        """Take the request of a process that wants to be a member."""
        machine = self._replicate(founder=True)
        self._perform()  # a founder leads from here on
        reply = machine.admit(request, self._now())
        self._perform()
        return reply

    def release(self, request: LeaveRequest) -> JoinReply:
        """Take the request of a member that wants to leave."""
        machine = self._replicate(founder=True)
        reply = machine.release(request.member, self._now())
        self._perform()
        return reply

    def learn(self, reply: JoinReply) -> None:
        """Take what members said to this process, which wants to join. From any thread."""
        machine, reactor = self._machine, self._reactor
        if isinstance(machine, Replica) and reactor is not None:
            reactor.call_soon(lambda: machine.learn(reply))

    def _send_to_member(self, effect: SendToMember) -> None:
        reactor, machine = self._reactor, self._machine
        if reactor is None or not effect.address or not isinstance(machine, Replica):
            return
        if self._links is None:

            def lost(member: int) -> None:
                machine.unreachable(member)
                self._perform()

            def dismissed(member: int, why: str) -> None:
                if machine.dismiss(member, why):
                    self._perform()
                    self.on_dismissed(why)

            self._links = MemberLinks(
                reactor, self._key, machine.member, self._clock, lost=lost, dismissed=dismissed
            )
        if not self._links.send(*effect):
            machine.unreachable(effect.member)  # else it waits for what was dropped

    def _perform_as_member(self, machine: Replica, effects: Sequence[MemberEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendToMember):
                self._send_to_member(effect)
            elif isinstance(effect, Tell):
                _log.info("store member %s: %s", self.announced, effect.text)
        if machine.member in machine.configuration.members:
            self._joined.set()
        if not machine.leads:
            self._follows.set()
