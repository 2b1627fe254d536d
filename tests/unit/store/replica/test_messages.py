"""What members say comes back as it was; what they cannot say is refused."""

from __future__ import annotations

import typing

import pytest

from holdfast.errors import PeerViolation
from holdfast.store.raft import messages as raft
from holdfast.store.replica import messages as module
from holdfast.store.replica.messages import (
    Dismissal,
    FirstWord,
    JoinReply,
    JoinRequest,
    JoinState,
    LeaveRequest,
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

CHANGE = raft.MemberChange(raft.ChangeKind.VOTER, 3)
ENTRIES = (raft.LogEntry(1, 2, b"data"), raft.LogEntry(1, 3, b"", CHANGE))
SNAPSHOT = raft.LogSnapshot(4, 1, raft.Configuration((1, 2), (3,)), b"state")
MESSAGES: tuple[raft.Message, ...] = (
    raft.PreVote(1, 2, 3, 4, 5),
    raft.PreVoteReply(1, 2, 3, True),
    raft.Vote(1, 2, 3, 4, 5, True),
    raft.VoteReply(1, 2, 3, False),
    raft.AppendEntries(1, 2, 3, 4, 5, ENTRIES, 6),
    raft.AppendReply(1, 2, 3, 4, True, 5),
    raft.Heartbeat(1, 2, 3, 4, b"context"),
    raft.HeartbeatReply(1, 2, 3),
    raft.InstallSnapshot(1, 2, 3, SNAPSHOT),
    raft.TransferLeader(1, 2, 3),
    raft.TimeoutNow(1, 2, 3),
    raft.ReadIndexReply(1, 2, 3, 4, b"c"),
    raft.Proposal(1, 2, ENTRIES),
    raft.ReadIndex(1, 2, b"c"),
)


def test_every_message_has_an_example() -> None:
    assert {type(message) for message in MESSAGES} == set(typing.get_args(raft.Message))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: raft.Message) -> None:
    data = encode_message(message)
    assert decode_message(data) == message
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(PeerViolation):
            decode_message(wrong)


def test_unknown_kinds_are_refused() -> None:
    entry = encode_message(raft.Proposal(1, 2, ENTRIES[:1]))
    broken = bytearray(entry)
    broken[1 + 8 + 8 + 4 + 16] = 9  # the kind of the change
    with pytest.raises(PeerViolation, match="a change of the kind 9"):
        decode_message(bytes(broken))
    with pytest.raises(PeerViolation, match="kind 99"):
        decode_message(b"\x63")
    with pytest.raises(PeerViolation, match="does not begin"):
        decode_first(b"\x01")
    with pytest.raises(PeerViolation, match="no answer"):
        decode_answer(b"\x01")
    with pytest.raises(PeerViolation, match="answer 9"):
        decode_answer(b"\x22\x09" + bytes(20))


@pytest.mark.parametrize(
    "word", [MemberHello(1, 2), JoinRequest(3, "host:1", 9, 5), LeaveRequest(4)]
)
def test_first_words_come_back(word: FirstWord) -> None:
    frame = encode_first(word)
    assert decode_first(frame) == word
    assert is_members_word(frame)
    assert not is_members_word(b"\x01")


@pytest.mark.parametrize(
    "answer",
    [
        Dismissal("why"),
        JoinReply(JoinState.JOINED, 7, "a:1", ((1, "a:1"), (2, "b:2"))),
        JoinReply(JoinState.REFUSED, 7, "", (), "full"),
    ],
)
def test_answers_come_back(answer: JoinReply | Dismissal) -> None:
    assert decode_answer(encode_answer(answer)) == answer


def test_a_long_message_travels_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 4)
    frames = list(parts_of(b"0123456789"))
    assert [len(frame) for frame in frames] == [5, 5, 3]
    reader = PartsReader()
    for _ in range(2):
        assert [reader.feed(frame) for frame in frames] == [None, None, b"0123456789"]
    with pytest.raises(PeerViolation, match="no part"):
        reader.feed(b"\x01")


def test_a_message_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MESSAGE_BYTES_MAX", 9)
    monkeypatch.setattr(module, "PART_BYTES", 4)
    reader = PartsReader()
    *parts, last = parts_of(b"0123456789")
    for frame in parts:
        reader.feed(frame)
    with pytest.raises(PeerViolation, match="more than 9 bytes"):
        reader.feed(last)
