"""A member of a simulated cluster: a machine, the state that it replicates, and a user's whims.

The machine is the product's (`store/raft/machine.py`) or etcd's own (`etcd.py`); both have the same
methods. The state is the list of texts that were applied; a snapshot holds all of them, by lines.
"""

from __future__ import annotations

import random
from typing import Protocol

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
from holdfast.store.raft.messages import Configuration, LogEntry, MemberChange, Message

__all__ = ["Machine", "Member", "MemberView", "OurRaft", "World", "number_of"]

KEPT_ENTRIES = 4
"""How many entries a member keeps, at most, when it drops what it applied."""


class MemberView(Protocol):
    """What a machine lets be seen of its state."""

    id: int
    term: int
    configuration: Configuration
    applied: int


class Machine(Protocol):
    """One member of a cluster, ours or etcd's; `Raft` says what each method does."""

    role: Role
    leader: int | None

    @property
    def state(self) -> MemberView: ...
    def tick(self) -> None: ...
    def step(self, message: Message) -> None: ...
    def propose(self, data: bytes) -> str | None: ...
    def change(self, change: MemberChange) -> str | None: ...
    def read(self, context: bytes) -> str | None: ...
    def transfer(self, to: int) -> str | None: ...
    def campaign(self) -> None: ...
    def unreachable(self, member: int) -> None: ...
    def send_snapshot(self, member: int, data: bytes) -> None: ...
    def drop_log(self, index: int) -> None: ...
    def tail(self) -> list[LogEntry]:
        """Return the entries that it does not know to be committed."""
        ...

    def take_effects(self) -> list[RaftEffect]: ...


class OurRaft(Raft):
    """The product's machine, which lets its log be seen."""

    def tail(self) -> list[LogEntry]:
        log = self.state.log
        return [log.entry(index) for index in range(log.committed + 1, log.last_index + 1)]


class World(Protocol):
    """What a member needs of its simulation."""

    rng: random.Random
    working: bool
    """False once nothing new is asked for."""

    def act_later(self, member: Member, delay: float) -> None:
        """Let a member act again, so much later."""
        ...

    def carry(self, member: Member, message: Message) -> None:
        """Let a message travel."""
        ...

    def wish(self, member: Member) -> MemberChange | None:
        """Return a change of the members that this leader should ask for, if there is one."""
        ...

    def observe(self, member: Member, effects: list[RaftEffect]) -> None:
        """Judge what a member did."""
        ...

    def begin_read(self, context: bytes) -> None:
        """Note that a read is about to be asked for."""
        ...

    def note(self, *words: object) -> None:
        """Add a line to the trace."""
        ...


class Member:
    """One life of one process."""

    def __init__(self, world: World, me: str, machine: Machine) -> None:
        self.me = me
        self.number = machine.state.id
        self.alive = True
        self.paused_until = 0.0
        self.machine = machine
        self.texts: list[bytes] = []
        self.dead: set[int] = set()
        """The members that are gone, as far as this one has heard."""
        self._world = world
        self._asked = 0

    # What the simulation does to it.

    def act(self) -> None:
        """Ask for something, again and again."""
        rng, machine = self._world.rng, self.machine
        if not self._world.working:
            return
        wish = self._world.wish(self) if rng.random() < 0.5 else None
        dice = rng.random()
        if wish is not None:
            self._world.note(self.me, "asks for", wish, machine.change(wish) or "")
        elif dice < 0.5:
            self.propose()
        elif dice < 0.7:
            self.read()
        elif dice < 0.78:
            to = rng.choice((self.number, *machine.state.configuration.voters))
            self._world.note(self.me, "hands over to", to, machine.transfer(to) or "")
        elif dice < 0.98:
            machine.drop_log(machine.state.applied - rng.randrange(KEPT_ENTRIES))
        else:
            machine.campaign()
        self.perform()
        self._world.act_later(self, rng.uniform(0.0, 0.4))

    def propose(self) -> str | None:
        """Propose a text that occurs once."""
        self._asked += 1
        refused = self.machine.propose(b"%d:%d" % (self.number, self._asked))
        self.perform()
        return refused

    def read(self) -> None:
        """Ask for a read."""
        self._asked += 1
        context = b"r%d:%d" % (self.number, self._asked)
        self._world.begin_read(context)
        self.machine.read(context)

    def tick(self) -> None:
        """Let its clock tick."""
        self.machine.tick()
        self.perform()

    def receive(self, message: Message) -> None:
        """Take a message."""
        self._world.note(self.me, "takes", message)
        self.machine.step(message)
        self.perform()

    def lose(self, member: int) -> None:
        """Hear that what was sent to a member may be lost."""
        self.machine.unreachable(member)
        self.perform()

    def died(self, life: str) -> None:
        """Hear that another member is gone."""
        self.dead.add(number_of(life))

    # What it does.

    def perform(self) -> None:
        """Perform what the machine wants, and let it be judged."""
        while effects := self.machine.take_effects():
            for effect in effects:
                self._apply(effect)
            self._world.observe(self, effects)
            for effect in effects:
                match effect:
                    case SendMessage(message):
                        self._world.carry(self, message)
                    case NeedSnapshot(member):
                        self.machine.send_snapshot(member, self.snapshot())
                    case _:
                        pass

    def _apply(self, effect: RaftEffect) -> None:
        match effect:
            case Committed(entry):
                if entry.data:
                    self.texts.append(entry.data)
            case Restored(snapshot):
                self.texts = snapshot.data.split(b"\n") if snapshot.data else []
            case Became():
                self._world.note(self.me, effect)
            case SendMessage() | ReadReady() | NeedSnapshot():
                pass

    def snapshot(self) -> bytes:
        """Return its state as bytes."""
        return b"\n".join(self.texts)

    def __repr__(self) -> str:
        return self.me


def number_of(life: str) -> int:
    """Return the number of the member that a life is: lives are counted from 0."""
    return int(life.rpartition(".")[2]) + 1
