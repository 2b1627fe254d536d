"""The kinds of messages: their names, their numbers on the wire, and which are answered."""

from __future__ import annotations

from holdfast.rpc.wire.messages import NO_BUDGET, RETRYABLE, Kind, Message


def test_the_kinds_that_faults_are_planned_by() -> None:
    """The ten that others know by name, and one of ours."""
    assert {kind.name: int(kind) for kind in Kind if kind < Kind.REPLY} == {
        "PYTHON_CALL": 1,
        "PYTHON_REMOTE_CALL": 2,
        "PYTHON_RREF_FETCH_CALL": 3,
        "SCRIPT_CALL": 4,
        "SCRIPT_REMOTE_CALL": 5,
        "SCRIPT_RREF_FETCH_CALL": 6,
        "RREF_FORK_REQUEST": 7,
        "RREF_CHILD_ACCEPT": 8,
        "RREF_USER_DELETE": 9,
        "CLEANUP_AUTOGRAD_CONTEXT_REQ": 10,
        "RREF_UNREAD": 11,
    }


def test_requests_are_answered_and_nothing_else_is() -> None:
    assert {kind for kind in Kind if kind.is_request} == set(list(Kind)[:11])
    for kind in (Kind.REPLY, Kind.FAILURE, Kind.HELLO, Kind.CANCEL, Kind.ACKNOWLEDGE):
        assert not kind.is_request


def test_kinds_that_are_sent_again_by_themselves() -> None:
    assert sorted(kind.name for kind in RETRYABLE) == [
        "CLEANUP_AUTOGRAD_CONTEXT_REQ",
        "RREF_CHILD_ACCEPT",
        "RREF_FORK_REQUEST",
        "RREF_UNREAD",
        "RREF_USER_DELETE",
    ]


def test_a_message_has_only_a_kind_and_a_number_by_default() -> None:
    message = Message(Kind.PYTHON_CALL, 2)
    assert (message.budget_ms, message.once, message.body) == (NO_BUDGET, False, b"")
    assert not message.buffers
    assert not message.given


def test_the_size_of_a_message_is_in_bytes() -> None:
    wide = memoryview(bytearray(16)).cast("Q")
    assert Message(Kind.REPLY, 1, b"ab").size() == 2
    assert Message(Kind.REPLY, 1, b"ab", [b"abc", wide]).size() == 21
