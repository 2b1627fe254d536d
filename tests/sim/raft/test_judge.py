"""The judge of simulated clusters sees each broken promise, and nothing else."""

from __future__ import annotations

from typing import Any, cast

from holdfast.store.raft.effects import (
    Became,
    Committed,
    RaftEffect,
    ReadReady,
    Restored,
    Role,
    SendMessage,
)
from holdfast.store.raft.messages import (
    ChangeKind,
    Configuration,
    HeartbeatReply,
    LogEntry,
    LogSnapshot,
    MemberChange,
    Vote,
    VoteReply,
)
from tests.sim.raft.judge import Judge
from tests.sim.raft.member import Member

FOUNDERS = Configuration((1, 2, 3))


class Shown:
    """A member that shows what a test says."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.texts: list[bytes] = []
        self.machine = self.state = self
        self.role = Role.FOLLOWER
        self.term = 2
        self.applied = 1
        self.configuration = FOUNDERS
        self.entries: list[LogEntry] = []

    def tail(self) -> list[LogEntry]:
        return self.entries


class Scene:
    """Three members and their judge."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.judge = Judge(FOUNDERS, 4, self.failures.append)
        self.members = {number: Shown(number) for number in FOUNDERS.voters}
        for member in self.members.values():
            self.judge.began(cast(Member, member))

    def does(self, number: int, *effects: RaftEffect) -> list[str]:
        """Let a member do something; return what is wrong about it, by number."""
        self.judge.observe(cast(Member, self.members[number]), list(effects))
        return self.told()

    def told(self) -> list[str]:
        found = [text.partition(":")[0] for text in self.failures]
        self.failures.clear()
        return found


def applied(index: int, data: bytes = b"", **fields: Any) -> Committed:
    return Committed(LogEntry(2, index, data, **fields))


def leads(term: int) -> Became:
    return Became(Role.LEADER, term, 1, "")


def test_two_leaders_of_one_term() -> None:
    scene = Scene()
    assert scene.does(1, leads(2)) == []
    assert scene.does(1, leads(3)) == []
    assert scene.does(2, leads(2)) == ["R1"]


def test_entries_of_equal_term_and_index_that_differ() -> None:
    scene = Scene()
    for number, first in ((1, 1), (2, 1), (3, 2)):
        scene.members[number].entries = [LogEntry(first, 2), LogEntry(2, 3, b"x")]
    assert [scene.does(number) for number in (1, 2, 3)] == [[], [], ["R2"]]
    scene.members[2].entries = [LogEntry(1, 2), LogEntry(2, 3, b"y")]
    assert scene.does(2) == ["R2"]


def test_a_leader_that_lacks_what_was_committed_before() -> None:
    scene = Scene()
    scene.does(1, applied(2, b"x"))
    assert scene.does(2, leads(2)) == []  # of the same term: it was elected before
    assert scene.does(2, leads(3)) == ["R3"]
    scene.members[3].entries = [LogEntry(2, 2, b"x")]
    assert scene.does(3, leads(4)) == []


def test_entries_that_differ_or_are_out_of_order() -> None:
    scene = Scene()
    assert scene.does(1, applied(2, b"x"), applied(3)) == []
    assert scene.does(2, applied(2, b"y")) == ["R4"]
    assert scene.does(2, applied(2, b"x")) == ["R4"]
    assert scene.does(3, applied(3)) == ["R4"]


def test_snapshots_that_are_not_what_was_applied() -> None:
    scene = Scene()
    change = MemberChange(ChangeKind.REMOVE, 3)
    scene.does(1, applied(2, b"x"), applied(3, change=change))
    scene.members[2].texts = [b"x"]
    right = Configuration((1, 2))
    assert scene.does(2, Restored(LogSnapshot(2, 2, right, b"x"))) == ["R4"]
    assert scene.does(2, Restored(LogSnapshot(3, 2, right, b"x"))) == []
    assert scene.does(2, Restored(LogSnapshot(3, 2, right, b"x"))) == ["R4"]
    assert scene.does(3, Restored(LogSnapshot(3, 2, right, b"x"))) == ["R4"]


def test_a_second_vote() -> None:
    scene = Scene()
    assert scene.does(1, SendMessage(VoteReply(2, 1, 5, reject=False))) == []
    assert scene.does(1, SendMessage(VoteReply(3, 1, 5, reject=True))) == []
    assert scene.does(1, SendMessage(VoteReply(3, 1, 5, reject=False))) == ["R5"]
    assert scene.does(1, SendMessage(Vote(3, 1, 5, 1, 1))) == ["R5"]
    assert scene.does(1, SendMessage(Vote(3, 1, 6, 1, 1))) == []


def test_a_read_that_comes_too_early() -> None:
    scene = Scene()
    scene.judge.begin_read(b"a")
    scene.does(1, applied(2))
    scene.judge.begin_read(b"b")
    assert scene.does(2, ReadReady(1, b"a")) == []
    assert scene.does(2, ReadReady(1, b"b")) == ["R6"]
    assert scene.does(2, ReadReady(2, b"b")) == []


def test_two_changes_under_way() -> None:
    scene = Scene()
    change = MemberChange(ChangeKind.REMOVE, 3)
    scene.members[1].entries = [LogEntry(2, 2, b"", change), LogEntry(2, 3)]
    assert scene.does(1) == []
    scene.members[1].entries.append(LogEntry(2, 4, b"", change))
    assert scene.does(1) == ["R7"]


def test_a_leader_without_a_majority() -> None:
    scene = Scene()
    member = cast(Member, scene.members[1])
    scene.members[1].role = Role.LEADER
    for _ in range(40):
        scene.judge.received(member, HeartbeatReply(1, 2, 2))
        scene.judge.ticked(member)
    assert scene.told() == []
    for _ in range(11):
        scene.judge.ticked(member)
    assert scene.told() == []
    scene.judge.ticked(member)
    assert scene.told() == ["R8"]
    scene.members[1].configuration = Configuration((1,))
    scene.judge.ticked(member)
    assert scene.told() == []
