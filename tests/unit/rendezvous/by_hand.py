"""Nodes driven by hand over one keyspace: no thread, no clock, every step in the test's hands."""

from __future__ import annotations

from typing import TypeVar

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.ids import NodeId, RunId
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.effects import Follow, Notice, Perform, RoundReady
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.model import Announcement, Keys, Phase, RoundRecord
from holdfast.store.keyspace import Keyspace
from holdfast.store.ops import AnyOp, Change, Entry, Get, Set

KEYS = Keys(RunId("job"))
N = TypeVar("N")


class Driven:
    """A node, what it follows, what it was told, and what it has told and done."""

    def __init__(self, world: World, name: str, rules: Rules, slot: int | None) -> None:
        me = Announcement(
            NodeId(name), f"host-{name}", "127.0.0.1", 4000, Phase.WAITING, 0, slot, ""
        )
        self.world = world
        self.node = NodeMachine(me, KEYS, rules)
        self.prefix: str | None = None
        self.inbox: list[Change] = []
        self.notices: list[Notice] = []
        self.ops: list[AnyOp] = []
        self.held: AnyOp | None = None
        self.deaf = False  # hears of no change
        self.stopped = False  # as by SIGSTOP: does nothing, hears nothing
        self.cut: HoldfastError | None = None  # what every operation raises
        self.hold: type | None = None  # an operation of this kind is held back for now

    def take(self, kind: type[N]) -> list[N]:
        """Return the notices of a kind so far, and forget them."""
        found: list[N] = [notice for notice in self.notices if isinstance(notice, kind)]
        self.notices = [notice for notice in self.notices if not isinstance(notice, kind)]
        return found

    def the(self, kind: type[N]) -> N:
        """Return the one notice of a kind, and forget it."""
        (found,) = self.take(kind)
        return found

    def step(self) -> bool:
        """Do what the node wants; say whether that was anything."""
        if self.stopped:
            return False
        effects = self.node.take_effects()
        for effect in effects:
            match effect:
                case Perform(op):
                    if self.hold is not None and isinstance(op, self.hold):
                        self.held = op
                    else:
                        self.perform(op)
                case Follow(prefix):
                    self.prefix = prefix
                    self.inbox = self.world.space.state_of(prefix, True)
                case _:
                    self.notices.append(effect)
        if self.inbox and not self.deaf:
            changes, self.inbox = self.inbox, []
            self.node.changed(changes, self.world.now)
            return True
        return bool(effects)

    def perform(self, op: AnyOp) -> None:
        self.ops.append(op)
        try:
            if self.cut is not None:
                raise self.cut
            result = self.world.apply(op)
        except HoldfastError as error:
            self.node.failed(error, self.world.now)
        else:
            self.node.done(result, self.world.now)

    def let_go(self) -> None:
        """Perform the operation that was held back."""
        op, self.held, self.hold = self.held, None, None
        assert op is not None
        self.perform(op)


class World:
    """A keyspace, a time, and nodes."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.space = Keyspace()
        self.now = 100.0
        self.nodes: list[Driven] = []

    def add(self, name: str, slot: int | None = None, *, ask: bool = True) -> Driven:
        driven = Driven(self, name, self.rules, slot)
        self.nodes.append(driven)
        driven.node.start(self.now)
        if ask:
            driven.node.ask("", self.now)
        return driven

    def settle(self) -> None:
        """Let everything happen that can without time passing."""
        for _ in range(10_000):
            steps = [node.step() for node in self.nodes]
            if True not in steps:
                return
        raise AssertionError("the nodes never rest")

    def run(self, seconds: float) -> None:
        """Let time pass, from one wake-up to the next."""
        self.settle()
        end = self.now + seconds
        while self.now < end:
            wakes = [self.space.next_expiry(), *(n.node.next_wake() for n in self.running())]
            later = [wake for wake in wakes if wake is not None and wake > self.now]
            self.now = min([end, *later])
            self.space.expire(self.now)
            self.publish()
            for each in self.running():
                each.node.tick(self.now)
            self.settle()

    def running(self) -> list[Driven]:
        return [each for each in self.nodes if not each.stopped]

    def apply(self, op: AnyOp) -> object:
        try:
            return self.space.apply(op, self.now)
        finally:
            self.publish()

    def publish(self) -> None:
        changes = self.space.take_changes()
        for each in self.nodes:
            if each.prefix is not None:
                each.inbox += [c for c in changes if c.key.startswith(each.prefix)]

    def put(self, key: str, value: bytes) -> None:
        """Write a key from outside."""
        self.apply(Set(key, value))

    def entry(self, key: str) -> Entry | None:
        return self.space.apply(Get(key), self.now)

    def kill(self, driven: Driven) -> None:
        """End a node without a word; its lease runs out by itself."""
        driven.stopped = True


NO_STORE = StoreUnavailable("nobody there")


# Two nodes in their first round: what most stories begin with.

RULES = Rules(
    min_nodes=2, max_nodes=2, join_s=60, last_call_s=5, keep_alive_s=5, lease_s=15, linger_s=0.5
)


WALL = 1.7e9


def pair(rules: Rules = RULES) -> tuple[World, Driven, Driven]:
    """Two nodes in round 1; the first one leads."""
    world = World(rules)
    a, b = world.add("a"), world.add("b")
    world.settle()
    assert (a.the(RoundReady).rank, b.the(RoundReady).rank) == (0, 1)
    assert a.node.leading
    assert not b.node.leading
    return world, a, b


def record(world: World) -> RoundRecord:
    entry = world.entry(KEYS.round)
    assert entry is not None
    return RoundRecord.decode(entry.value)


def announced(world: World, name: str) -> Announcement:
    entry = world.entry(KEYS.node(NodeId(name)))
    assert entry is not None
    return Announcement.decode(entry.value)
