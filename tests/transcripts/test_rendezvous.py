"""The main stories of a rendezvous, told in tests/transcripts/rendezvous/*.txt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, StoreUnavailable, UsageError
from holdfast.ids import NodeId, RunId
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.effects import (
    Closed,
    Counted,
    Explained,
    Follow,
    Left,
    Notice,
    Perform,
    RoundOver,
    RoundReady,
    StoreLost,
    TimedOut,
)
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.model import (
    Announcement,
    Failures,
    Keys,
    Page,
    Phase,
    Progress,
    RoundRecord,
)
from holdfast.store import ops
from holdfast.store.keyspace import Keyspace
from holdfast.testing.transcript import Command

STORIES = sorted((Path(__file__).parent / "rendezvous").glob("*.txt"))
KEYS = Keys(RunId("job"))


class StoryNode:
    """A node of the story: its machine, its watch, its lease, and how it fares."""

    def __init__(self, name: str, rules: Rules) -> None:
        self.name = name
        me = Announcement(NodeId(name), name, f"{name}.example", 4000, Phase.WAITING, 0, None, "")
        self.machine = NodeMachine(me, KEYS, rules)
        self.follows = ""
        self.changes: list[ops.Change] = []
        self.lease: ops.Lease | None = None
        self.record: RoundRecord | None = None
        self.dead = self.paused = self.cut_off = False
        # It dies at this step, before or after the store has performed it.
        self.dies: tuple[str, str] | None = None
        # An operation that is under way while the node is paused.
        self.late: ops.AnyOp | None = None
        self.said = ""


class RendezvousStory:
    """Nodes over one store. After each command they do all that they can; the output says what.

    rules [min=] [max=] [join=] [last_call=]   before the first node
    node A... [kill_at= when=]   start nodes, which ask for a round at once
    ask A WHY, finish A, leave A, close A WHY [failed=yes]   what the user of a node does
    fail A                       count a failure
    write A                      write in its round's store
    advance S                    let time pass
    kill A, cut A                die in silence; die so that the store sees the connection closed
    kill-at A STEP when=before|after           cut, at its next such step
    pause A, pause-at A STEP, resume A         stop; stop with that step's request under way
    no-store A...                from now on the store cannot be reached by these
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._store = Keyspace()
        self._rules = Rules(min_nodes=2, max_nodes=4)
        self._nodes: dict[str, StoryNode] = {}
        self._lines: list[str] = []

    def __call__(self, command: Command) -> str:
        self._lines = []
        args = command.args
        match command.name:
            case "rules":
                self._rules = self._read_rules(command.options)
            case "node":
                for name in args:
                    node = self._nodes[name] = StoryNode(name, self._rules)
                    if "kill_at" in command.options:
                        node.dies = (command.options["kill_at"], command.options["when"])
                    node.machine.start(self._now)
                    node.machine.ask("", self._now)
            case "advance":
                self._advance(float(args[0]))
            case "no-store":
                for name in args:
                    self._nodes[name].cut_off = True
            case _:
                self._act(self._nodes[args[0]], command)
        self._settle()
        return "\n".join(self._lines)

    def _read_rules(self, options: dict[str, str]) -> Rules:
        return Rules(
            min_nodes=int(options.get("min", 2)),
            max_nodes=int(options.get("max", 4)),
            join_s=float(options.get("join", 600)),
            last_call_s=float(options.get("last_call", 30)),
        )

    def _act(self, node: StoryNode, command: Command) -> None:
        machine, args = node.machine, command.args
        match command.name:
            case "ask":
                machine.ask(args[1], self._now)
            case "leave":
                machine.leave(self._now)
            case "finish":
                machine.finish(self._now)
            case "close":
                machine.close(args[1], command.options.get("failed") == "yes", self._now)
            case "fail":
                machine.count_failure(self._now, self._now)
            case "write":
                self._write(node)
            case "kill":
                node.dead = True
            case "cut":
                self._cut(node)
            case "kill-at":
                node.dies = (args[1], command.options["when"])
            case "pause":
                node.paused = True
            case "pause-at":
                node.dies = (args[1], "pause")
            case "resume":
                self._resume(node)
            case _:
                raise UsageError(f"no such command: {command.name}")

    # What happens.

    def _settle(self) -> None:
        while True in [self._step(node) for node in self._nodes.values()]:
            pass

    def _advance(self, seconds: float) -> None:
        self._settle()
        end = self._now + seconds
        while self._now < end:
            wakes = [self._store.next_expiry()]
            wakes += [node.machine.next_wake() for node in self._nodes.values() if self._up(node)]
            self._now = min([end, *(at for at in wakes if at is not None and at > self._now)])
            self._store.expire(self._now)
            self._deliver()
            for node in self._nodes.values():
                if self._up(node):
                    node.machine.tick(self._now)
            self._settle()

    def _up(self, node: StoryNode) -> bool:
        return not node.dead and not node.paused

    def _step(self, node: StoryNode) -> bool:
        """Let a node do one thing; say whether it did."""
        if not self._up(node):
            return False
        effects = node.machine.take_effects()
        for effect in effects:
            match effect:
                case Perform(op):
                    self._perform(node, op)
                case Follow(prefix):
                    node.follows = prefix
                    node.changes = self._store.state_of(prefix, True)
                case _:
                    self._hear(node, effect)
        if node.changes and self._up(node):
            changes, node.changes = node.changes, []
            node.machine.changed(changes, self._now)
            return True
        return bool(effects)

    def _perform(self, node: StoryNode, op: ops.AnyOp) -> None:
        dies = node.dies if node.dies is not None and node.dies[0] == step_of(op) else None
        if dies == (step_of(op), "before"):
            self._say(node, f"dies before it can {step_of(op)}")
            self._cut(node)
            return
        if dies == (step_of(op), "pause"):
            self._say(node, f"stops; its request to {step_of(op)} is under way")
            node.paused, node.late, node.dies = True, op, None
            return
        outcome = self._apply(node, op)
        text = describe(op, outcome)
        if text and text != node.said:  # an operation that fails again and again is told once
            self._say(node, text)
        node.said = text
        if dies == (step_of(op), "after"):
            self._say(node, "dies before it hears of that")
            self._cut(node)
        elif isinstance(outcome, HoldfastError):
            node.machine.failed(outcome, self._now)
        else:
            if isinstance(outcome, ops.Lease):
                node.lease = outcome
            node.machine.done(outcome, self._now)

    def _apply(self, node: StoryNode, op: ops.AnyOp) -> object:
        try:
            if node.cut_off:
                raise StoreUnavailable("connection refused")
            return self._store.apply(op, self._now)
        except HoldfastError as error:
            return error
        finally:
            self._deliver()

    def _deliver(self) -> None:
        changes = self._store.take_changes()
        for change in changes:
            if change.value is None and change.key.startswith(KEYS.nodes):
                name = change.key.removeprefix(KEYS.nodes)
                self._say(self._nodes[name], "is gone from the store")
        for node in self._nodes.values():
            if node.follows:
                node.changes += [one for one in changes if one.key.startswith(node.follows)]

    def _cut(self, node: StoryNode) -> None:
        node.dead = True
        if node.lease is not None:
            self._store.curtail(node.lease.id, self._now + self._rules.linger_s)

    def _resume(self, node: StoryNode) -> None:
        node.paused = False
        op, node.late = node.late, None
        if op is not None:
            self._perform(node, op)
        node.machine.tick(self._now)

    def _write(self, node: StoryNode) -> None:
        assert node.record is not None
        op = ops.Add(KEYS.of_round(node.record.number) + "steps", 1)
        outcome = self._apply(node, ops.Guarded(KEYS.round, node.record.encode(), op))
        refused = f": refused, {outcome}" if isinstance(outcome, HoldfastError) else ""
        self._say(node, f"writes in round {node.record.number}{refused}")

    def _hear(self, node: StoryNode, notice: Notice) -> None:
        match notice:
            case RoundReady(record, rank):
                node.record = record
                self._say(node, f"is told: round {record.number}, rank {rank} of {record.size}")
            case RoundOver(number, reason):
                self._say(node, f"is told: RoundOver {number}: {reason}")
            case Explained(progress):
                self._say(node, f"knows: {progress.reason}")
            case Counted(_, failures):
                times = ", ".join(f"{at:.2f}" for at in failures.times)
                when = f", at {times}" if times else ""
                self._say(node, f"is told: failures so far: {failures.count}{when}")
            case Closed(reason, failed):
                self._say(node, f"is told: Closed{' as failed' * failed}: {reason}")
            case TimedOut(reason) | StoreLost(reason):
                self._say(node, f"is told: {type(notice).__name__}: {reason}")
            case Left():
                self._say(node, "is told: Left")

    def _say(self, node: StoryNode, text: str) -> None:
        self._lines.append(f"{self._now:7.2f}  {node.name} {text}")


def step_of(op: ops.AnyOp) -> str:
    """Name the step that an operation is."""
    match op.op if isinstance(op, ops.Guarded) else op:
        case ops.LeaseGrant() | ops.LeaseKeep() | ops.LeaseRevoke():
            return "renew"
        case ops.CompareSet(KEYS.leader):
            return "be elected"
        case ops.ListPrefix():
            return "list"
        case ops.MultiSet():
            return "write the roll"
        case ops.CompareSet(KEYS.round):
            return "publish"
        case ops.Set(KEYS.progress):
            return "tell"
        case ops.CompareSet(KEYS.failures):
            return "count"
        case _:
            return "announce"


def describe(op: ops.AnyOp, outcome: object) -> str:
    """Say what an operation did, or nothing where that is of no interest."""
    inner = op.op if isinstance(op, ops.Guarded) else op
    if isinstance(outcome, HoldfastError):
        return f"cannot {step_of(op)}: {type(outcome).__name__}: {outcome}"
    match inner, outcome:
        case ops.Set(KEYS.progress, value), _:
            return f"tells all: {Progress.decode(value).reason}"
        case ops.CompareSet(KEYS.leader), ops.Swap(ok):
            return "is elected" if ok else "is not elected"
        case ops.CompareSet(KEYS.round, _, bytes() as desired), ops.Swap(ok):
            record = RoundRecord.decode(desired)
            late = "" if ok else ", too late"
            return f"publishes round {record.number} {record.status}{late}"
        case ops.MultiSet(((_, page), *_)), _:
            names = " ".join(member.node for member in Page.decode(page).members)
            return f"writes the roll [{names}]"
        case ops.CompareSet(KEYS.failures, _, bytes() as desired), _:
            return f"counts failure {Failures.decode(desired).count}"
        case ops.CompareSet(_, _, bytes() as desired), _:
            said = Announcement.decode(desired)
            if said.phase in (Phase.FINISHED, Phase.LEFT):
                return f"announces that it has {said.phase} round {said.round}"
            why = f", because {said.why}" if said.why else ""
            return f"announces that it is {said.phase}, after round {said.round}{why}"
        case ops.ListPrefix(prefix), _ if prefix != KEYS.root:
            return "reads the roll"
        case ops.ListPrefix(), tuple() as entries:
            nodes = [entry.key for entry in entries if entry.key.startswith(KEYS.nodes)]
            return f"lists the nodes: {' '.join(key.removeprefix(KEYS.nodes) for key in nodes)}"
        case _:
            return ""


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, transcript: Callable[[Path, Callable[[Command], str]], None]) -> None:
    transcript(path, RendezvousStory())


def test_the_main_stories_are_there() -> None:
    assert {path.stem for path in STORIES} >= {
        "close",
        "failures",
        "finish",
        "finish-and-die",
        "first-meeting",
        "join-timeout",
        "last-call",
        "leader-dies",
        "leave",
        "member-dies",
        "paused-leader",
        "spare",
        "store-lost",
    }
