"""The members of a replicated store, as one of them sees them: which join, leave, and have died.

The part of `machine.py` that is about members. A process asks the leader to be a member until it is
one, and to be none until it is none. A leader that is to leave hands over first. Raft decides on
each change of the members, and `policy.py` on which change is asked for.

Guarantees
    MB-7  A client that shares its process with a member has died if the member has, by proof
          (MV-2), unless it is connected.
    MB-8  A process that asks to leave is told that it is gone only when the members have agreed on
          that; from then on, the store lacks nothing without it.
"""

from __future__ import annotations

from holdfast.ids import SessionId
from holdfast.store.raft.effects import Role
from holdfast.store.raft.machine import Raft
from holdfast.store.raft.messages import ChangeKind, Configuration, MemberChange
from holdfast.store.replica.care import MemberCare
from holdfast.store.replica.commands import ClientDied, Command, MemberAnnounced
from holdfast.store.replica.effects import MemberEffect, Tell
from holdfast.store.replica.messages import JoinReply, JoinRequest, JoinState
from holdfast.store.replica.places import MemberPlaces
from holdfast.store.replica.policy import MEMBERS_MAX
from holdfast.store.replica.voices import MemberVoices
from holdfast.store.service import Service

__all__ = ["StoreMembership"]


class StoreMembership:
    """What a member knows of the others, and does about them."""

    def __init__(self, service: Service, raft: Raft, now: float) -> None:
        self.service = service
        self.member = raft.state.id
        self._raft = raft
        self._now = now
        self._places = MemberPlaces()
        self._care = MemberCare(raft)
        self._mourned: set[int] = set()  # sessions that this leader has told as dead
        self._term: int | None = None  # while this member leads
        self._leaves = self._dismissed = False
        self._commands: list[Command] = []
        self._effects: list[MemberEffect] = []

    @property
    def leads(self) -> bool:
        """Say whether this member serves clients."""
        return self._term is not None

    @property
    def configuration(self) -> Configuration:
        """The members, as far as this one knows."""
        return self._raft.state.configuration

    @property
    def leader(self) -> int | None:
        """The number of the member that leads, as far as this one knows."""
        return self._raft.leader

    @property
    def is_gone(self) -> bool:
        """Say whether this process was a member and is none any more."""
        members = self.configuration.members
        return self._dismissed or (bool(members) and self.member not in members)

    @property
    def is_deserted(self) -> bool:
        """Say whether all other members have died, by proof, as of the last event."""
        members = self.configuration.members
        return len(members) > 1 and {self.member, *self.voices.dead(self._now)} >= set(members)

    @property
    def voices(self) -> MemberVoices:
        """What is known of the connections on which the other members speak."""
        return self._care.voices

    def admit(self, request: JoinRequest, now: float) -> JoinReply:
        """Take the request of a process that wants to be a member; it asks until it is one."""
        self._now = now
        member, address = request.member, request.address
        members = self.configuration.members
        if not self.leads:
            return self._reply_elsewhere()
        if member in members:
            settled = self._care.is_settled(now, self._places.owners)
            return self._reply(JoinState.JOINED if settled else JoinState.WAIT)
        if len(members) >= min(MEMBERS_MAX, request.most):
            return self._reply(JoinState.REFUSED, f"the store has {len(members)} members, the most")
        if self._places.of(member) != address:
            self._commands.append(MemberAnnounced(member, address, request.owner))
        elif self._raft.change(MemberChange(ChangeKind.LEARNER, member)) is None:
            self._care.heard(member, now)
        return self._reply(JoinState.WAIT)

    def release(self, member: int, now: float) -> JoinReply:
        """Take the request of a member that wants to leave; it asks until it is gone."""
        self._now = now
        if not self.leads:
            return self._reply_elsewhere()
        if member not in self.configuration.members:
            return self._reply(JoinState.GONE)
        self._care.leaving.add(member)
        if self._leads_still():
            self._tend()
        return self._reply(JoinState.WAIT)

    def leave(self) -> None:
        """Begin to hand over whenever this member leads: its process wants to leave."""
        self._leaves = True
        self._care.leaving.add(self.member)
        if self._leads_still():
            self._tend()

    def belongs_to(self, owner: int) -> None:
        """Hear of which client's process this member is a part (see `places.py`)."""
        here = self._places.of(self.member)
        self._places.put(self.member, here, owner)
        if self.leads:
            self._commands.append(MemberAnnounced(self.member, here, owner))

    def learn(self, reply: JoinReply) -> None:
        """Hear, as a process that asked to join, where the members are."""
        self._places.addresses.update(reply.members)
        if self.member in dict(reply.members):
            self._dismissed = False  # removed as lost while it joined, and added again

    def dismiss(self, sender: int, why: str) -> bool:
        """Hear that this process is no member; say whether that is news.

        False if it may be wrong, since another member leads, and if this process wants to leave.
        """
        if self._raft.hears_leader and self.leader != sender:
            return False
        self._dismissed = True
        if self._leaves:
            return False
        self._effects.append(Tell(f"no member of the store any more: {why}"))
        return True

    def hand_over(self) -> bool:
        """Begin to hand leadership to the voter with the longest log; say whether there is one."""
        others = [voter for voter in self.configuration.voters if voter != self.member]
        if not self.leads or not others:
            return False
        return self._raft.transfer(max(others, key=lambda m: self._raft.match_of(m) or 0)) is None

    # What a leader does.

    def _tend(self) -> None:
        """Ask for the next change of the members, or hand over if this leader wants to leave."""
        if self._change_members():
            return
        successor = self._care.successor(self._now)
        if successor is not None:
            self._raft.transfer(successor)

    def _change_members(self) -> bool:
        """Tell of the dead, ask for the next change of the members; say whether one is wanted."""
        self._mourn()
        change = self._care.wanted_change(self._now, self._places.owners)
        if change is not None and self._raft.change(change) is None:
            self._effects.append(Tell(f"asks for a change of the members: {change}"))
        return change is not None

    def _mourn(self) -> None:
        """Tell of clients that have died with a member's process (MB-7), before it is removed."""
        owners = (self._places.owners.get(member, 0) for member in self.voices.dead(self._now))
        died = [one for one in owners if one not in self._mourned]
        for owner in died:
            self._mourned.add(owner)
            if owner and not self.service.is_connected(SessionId(owner)):
                self._commands.append(ClientDied(SessionId(owner)))
        if died and self._commands:
            self._propose()

    def _leads_still(self) -> bool:
        """Say whether Raft thinks so, too: what it would pass on to another leader is not asked."""
        raft = self._raft
        return self._term == raft.state.term and raft.role is Role.LEADER

    def _propose(self) -> None:
        """Put the commands into the log; or take care of those that are refused."""
        raise NotImplementedError

    # What is known.

    def addresses(self) -> tuple[str, ...]:
        """Return where the members are."""
        return tuple(self._places.among(self.configuration.members).values())

    def peers(self) -> dict[int, str]:
        """Return where the other members are: connections to all are kept, for an election."""
        others = (member for member in self.configuration.members if member != self.member)
        return self._places.among(others)

    def _reply_elsewhere(self) -> JoinReply:
        elsewhere = self._places.of(self.leader) != ""
        return self._reply(JoinState.ELSEWHERE if elsewhere else JoinState.WAIT)

    def _reply(self, state: JoinState, why: str = "") -> JoinReply:
        members = tuple(self._places.among(self.configuration.members).items())
        leader = self._places.of(self.leader)
        return JoinReply(state, self.service.incarnation, leader, members, why)
