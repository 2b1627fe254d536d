"""Reads that wait until a majority has confirmed the leader."""

from __future__ import annotations

from holdfast.store.raft.reads import PendingReads, WaitingRead

VOTERS = (1, 2, 3)


def test_a_read_waits_for_an_echo_of_its_own_number() -> None:
    """RF-7."""
    reads = PendingReads()
    assert reads.heartbeat_context() == b""
    reads.begin(5, 1, b"a")
    first = reads.heartbeat_context()
    reads.begin(6, 2, b"b")
    assert reads.confirmed(1, VOTERS, 2) == []
    reads.echo(2, first)
    assert reads.confirmed(1, VOTERS, 2) == [WaitingRead(1, 5, 1, b"a")]
    reads.echo(3, reads.heartbeat_context())
    reads.echo(3, first)  # late
    assert reads.confirmed(1, VOTERS, 2) == [WaitingRead(2, 6, 2, b"b")]
    assert reads.confirmed(1, VOTERS, 2) == []
    assert reads.heartbeat_context() == b""


def test_one_voter_is_its_own_majority() -> None:
    reads = PendingReads()
    reads.begin(5, 1, b"a")
    assert len(reads.confirmed(1, (1,), 1)) == 1


def test_learners_and_foreign_contexts_confirm_nothing() -> None:
    """RF-8."""
    reads = PendingReads()
    reads.begin(5, 1, b"a")
    reads.echo(9, b"1")
    reads.echo(2, b"")
    reads.echo(2, b"x")
    assert reads.confirmed(1, VOTERS, 2) == []
