"""Members of a cluster whose messages travel when a test says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

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
from holdfast.store.raft.messages import Configuration, LogSnapshot, Message

__all__ = ["Cluster", "Node", "role_of", "sent"]


def sent(machine: Raft) -> list[Message]:
    """Take what a machine wants done, and return the messages among it."""
    return [effect.message for effect in machine.take_effects() if isinstance(effect, SendMessage)]


def role_of(machine: Raft) -> Role:
    """Return what a machine is now."""
    return machine.role


class Node:
    """A member, and what came of it."""

    def __init__(self, machine: Raft) -> None:
        self.machine = machine
        self.texts: list[bytes] = []
        self.changes: list[str] = []
        self.reads: list[tuple[int, bytes]] = []
        self.became: list[Became] = []
        self.restored: list[LogSnapshot] = []

    def perform(self, effects: list[RaftEffect]) -> list[Message]:
        """Perform what the machine wants; return the messages."""
        messages: list[Message] = []
        for effect in effects:
            match effect:
                case SendMessage(message):
                    messages.append(message)
                case Committed(entry):
                    if entry.data:
                        self.texts.append(entry.data)
                    if entry.change is not None:
                        self.changes.append(str(entry.change))
                case Restored(snapshot):
                    self.restored.append(snapshot)
                    self.texts = snapshot.data.split(b"\n") if snapshot.data else []
                case ReadReady(index, context):
                    self.reads.append((index, context))
                case NeedSnapshot(member):
                    self.machine.send_snapshot(member, b"\n".join(self.texts))
                    messages += sent(self.machine)
                case Became():
                    self.became.append(effect)
        return messages


class Cluster:
    """Nodes by number. `deliver` lets messages travel until there are none."""

    def __init__(self, *voters: int, learners: tuple[int, ...] = ()) -> None:
        self.founders = Configuration(voters, learners)
        self.nodes: dict[int, Node] = {}
        self.lost: Callable[[Message], bool] = lambda message: False
        """Says which messages get lost."""
        for number in self.founders.members:
            self.add(number, self.founders)

    def add(self, number: int, founders: Configuration | None = None) -> Node:
        """Add a node; without founders it is one that is to be made a member."""
        node = Node(Raft(number, founders, random.Random(number)))
        self.nodes[number] = node
        return node

    def __getitem__(self, number: int) -> Raft:
        return self.nodes[number].machine

    def collect(self) -> list[Message]:
        """Return the messages that all nodes want to be sent."""
        return [
            message
            for node in self.nodes.values()
            for message in node.perform(node.machine.take_effects())
        ]

    def deliver(self, messages: Iterable[Message] = ()) -> list[Message]:
        """Let these messages, and all that come of them, arrive; return those that arrived."""
        waiting = [*messages, *self.collect()]
        arrived = []
        while waiting:
            for message in waiting:
                if message.to in self.nodes and not self.lost(message):
                    arrived.append(message)
                    self[message.to].step(message)
            waiting = self.collect()
        return arrived

    def cut(self, *numbers: int) -> None:
        """Lose all messages from and to these from now on; without numbers, of none."""
        self.lost = lambda message: message.to in numbers or message.sender in numbers

    def elect(self, number: int) -> Raft:
        """Let a node be elected."""
        self[number].campaign()
        self.deliver()
        return self[number]

    def tick(self, ticks: int = 1, *numbers: int) -> None:
        """Let time pass at these nodes, or at all, with all messages arriving after each tick."""
        for _ in range(ticks):
            for number in numbers or tuple(self.nodes):
                self[number].tick()
            self.deliver()

    def texts(self) -> list[list[bytes]]:
        """Return what each node has applied."""
        return [node.texts for node in self.nodes.values()]
