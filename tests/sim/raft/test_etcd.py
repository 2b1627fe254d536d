"""Every message of ours is one of etcd's, and comes back as it was."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from holdfast.store.raft.messages import (
    AppendEntries,
    AppendReply,
    ChangeKind,
    Configuration,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    LogEntry,
    LogSnapshot,
    MemberChange,
    Message,
    PreVote,
    PreVoteReply,
    Proposal,
    ReadIndex,
    ReadIndexReply,
    TimeoutNow,
    TransferLeader,
    Vote,
    VoteReply,
)
from tests.sim.raft.etcd import from_etcd, missing, to_etcd

ENTRIES = (LogEntry(2, 5, b"x"), LogEntry(2, 6, b"", MemberChange(ChangeKind.LEARNER, 4)))
MESSAGES: list[Message] = [
    PreVote(1, 2, 3, 4, 2),
    PreVoteReply(1, 2, 3, reject=True),
    Vote(1, 2, 3, 4, 2),
    Vote(1, 2, 3, 4, 2, transfer=True),
    VoteReply(1, 2, 3, reject=False),
    AppendEntries(1, 2, 3, 4, 2, ENTRIES, 4),
    AppendReply(1, 2, 3, 4),
    AppendReply(1, 2, 3, 4, True, 2),
    Heartbeat(1, 2, 3, 4, b"7"),
    HeartbeatReply(1, 2, 3, b"7"),
    InstallSnapshot(1, 2, 3, LogSnapshot(5, 2, Configuration((1, 2), (3,)), b"x\ny")),
    TransferLeader(1, 2, 3),
    TimeoutNow(1, 2, 3),
    Proposal(1, 2, (LogEntry(data=b"x"),)),
    ReadIndex(1, 2, b"r"),
    ReadIndexReply(1, 2, 3, 4, b"r"),
]
EMPTY: dict[str, Any] = {
    "term": 0,
    "logTerm": 0,
    "index": 0,
    "entries": None,
    "commit": 0,
    "reject": False,
}
EMPTY |= {"hint": 0, "context": "", "snapshot": None}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert from_etcd(EMPTY | to_etcd(message)) == message


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    reason = missing()
    assert reason is not None
    assert "golang-go, golang-etcd-server-dev" in reason
