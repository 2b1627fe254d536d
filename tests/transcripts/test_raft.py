"""The main stories of Raft, told in tests/transcripts/raft/*.txt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.store.raft.effects import Became
from holdfast.store.raft.messages import (
    AppendEntries,
    AppendReply,
    ChangeKind,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    LogEntry,
    MemberChange,
    Message,
)
from holdfast.testing.transcript import Command
from tests.unit.store.raft.cluster import Cluster, Node

STORIES = sorted((Path(__file__).parent / "raft").glob("*.txt"))


class RaftStory:
    """A cluster; messages travel at once, unless they are lost.

    found 1 2 3 [learners=4]     the first members          join N      a process that is no member
    cut N..., mute N..., heal    lose all from and to N; lose all from N; lose nothing any more
    tick TICKS [at=N,...]        let time pass, at all members or at these
    campaign N, transfer N TO    stand for election; hand over
    propose N TEXT, read N NAME  ask member N
    change N KIND MEMBER         ask member N for a voter, a learner, or for a removal
    drop N                       member N drops the entries that it has applied
    applied                      what each member has applied
    """

    def __init__(self) -> None:
        self._cluster = Cluster()
        self._cut: tuple[int, ...] = ()
        self._mute: tuple[int, ...] = ()

    def __call__(self, command: Command) -> str:
        numbers = [int(word) for word in command.args if word.isdigit()]
        cluster, args = self._cluster, command.args
        refused: str | None = None
        match command.name:
            case "found":
                learners = command.options.get("learners", "")
                apart = tuple(int(word) for word in learners.split(",") if word)
                self._cluster = Cluster(*numbers, learners=apart)
            case "join":
                cluster.add(numbers[0])
            case "cut":
                self._cut = tuple(numbers)
            case "mute":
                self._mute = tuple(numbers)
            case "heal":
                self._cut = self._mute = ()
            case "tick":
                at = [int(word) for word in command.options.get("at", "").split(",") if word]
                lines: list[str] = []
                for _ in range(numbers[0]):
                    for number in at or tuple(cluster.nodes):
                        cluster[number].tick()
                    lines += self._deliver(quiet=True)
                return "\n".join(lines)
            case "campaign":
                cluster[numbers[0]].campaign()
            case "transfer":
                refused = cluster[numbers[0]].transfer(numbers[1])
            case "propose":
                refused = cluster[numbers[0]].propose(args[1].encode())
            case "read":
                refused = cluster[numbers[0]].read(args[1].encode())
            case "change":
                change = MemberChange(ChangeKind(args[1]), int(args[2]))
                refused = cluster[numbers[0]].change(change)
            case "drop":
                cluster[numbers[0]].drop_log(cluster[numbers[0]].state.applied)
            case "applied":
                return "\n".join(f"{n}: {self._state(node)}" for n, node in cluster.nodes.items())
            case _:
                raise UsageError(f"no such command: {command.name}")
        return "\n".join([f"refused: {refused}"] * (refused is not None) + self._deliver())

    def _state(self, node: Node) -> str:
        texts = " ".join(text.decode() for text in node.texts)
        return f"{texts or 'nothing'} (members {show_members(node)})"

    def _deliver(self, *, quiet: bool = False) -> list[str]:
        lines: list[str] = []
        waiting = self._collect(lines)
        while waiting:
            for message in waiting:
                lost = message.to in self._cut or message.sender in (*self._cut, *self._mute)
                beat = quiet and isinstance(message, Heartbeat | HeartbeatReply)
                if not beat:
                    lines.append(f"{show(message)}{' (lost)' * lost}")
                if not lost and message.to in self._cluster.nodes:
                    self._cluster[message.to].step(message)
            waiting = self._collect(lines)
        return lines

    def _collect(self, lines: list[str]) -> list[Message]:
        messages = []
        for number, node in self._cluster.nodes.items():
            before = (len(node.became), len(node.reads), len(node.restored))
            messages += node.perform(node.machine.take_effects())
            lines += [f"  {number} {show_role(became)}" for became in node.became[before[0] :]]
            lines += [
                f"  {number} may read {c.decode()} at {i}" for i, c in node.reads[before[1] :]
            ]
            lines += [f"  {number} restores {s.index}" for s in node.restored[before[2] :]]
        return messages


def show_members(node: Node) -> str:
    configuration = node.machine.state.configuration
    learners = [f"{n} learns" for n in configuration.learners]
    return ", ".join([*map(str, configuration.voters), *learners]) or "none"


def show_role(became: Became) -> str:
    leader = f", leader {became.leader}" if became.leader is not None else ""
    return f"is {became.role} in term {became.term}{leader}: {became.reason}"


def show_entry(entry: LogEntry) -> str:
    what = str(entry.change) if entry.change is not None else entry.data.decode() or "-"
    return f"{entry.index}/{entry.term} {what}" if entry.index else what


def show(message: Message) -> str:
    head = f"{message.sender}->{message.to} {type(message).__name__}"
    match message:
        case AppendEntries(term=term, index=index, log_term=log_term, commit=commit):
            entries = ", ".join(map(show_entry, message.entries))
            return f"{head} term {term} after {index}/{log_term} [{entries}] commit {commit}"
        case AppendReply(index=index, reject=True, hint=hint):
            return f"{head} lacks {index}, ends at {hint}"
        case AppendReply(term=term, index=index):
            return f"{head} term {term} has {index}"
        case InstallSnapshot(snapshot=snapshot):
            return f"{head} up to {snapshot.index}"
        case _:
            fields = {
                name: getattr(message, name)
                for name in ("term", "index", "log_term", "commit", "reject", "context", "transfer")
                if hasattr(message, name)
            }
            shown = [
                f"{name} {value!r}" for name, value in fields.items() if value not in {b"", False}
            ]
            return " ".join([head, *shown])


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, transcript: Callable[[Path, Callable[[Command], str]], None]) -> None:
    transcript(path, RaftStory())


def test_the_main_stories_are_there() -> None:
    names = {path.stem for path in STORIES}
    assert names >= {"election", "replication", "deposed-leader", "members", "snapshot", "transfer"}
