"""Reads wait for a confirmation, and are performed in order."""

from __future__ import annotations

import pytest

from holdfast.errors import PeerViolation
from holdfast.store.messages import Cancel, WatchClose
from holdfast.store.replica.reads import READS_BYTES_MAX, ReadQueue


def test_one_question_is_asked_for_all_reads_that_came() -> None:
    queue = ReadQueue()
    assert queue.ask() is None
    queue.add(1, Cancel(1), 10)
    queue.add(2, Cancel(2), 10)
    queue.add(1, WatchClose(3), 10)
    assert queue.ask() == 1
    queue.add(1, Cancel(4), 10)
    assert queue.ask() == 2
    queue.confirm(0)
    assert queue.ready() == ()
    queue.confirm(1)
    assert queue.ready() == (1, 2)
    assert [queue.take(1), queue.take(1), queue.take(1)] == [Cancel(1), WatchClose(3), None]
    queue.forget(2)
    queue.confirm(2)
    assert queue.ready() == (1,)
    queue.clear()
    assert queue.take(1) is None


def test_what_waits_is_bounded() -> None:
    queue = ReadQueue()
    queue.add(1, Cancel(1), READS_BYTES_MAX)
    with pytest.raises(PeerViolation, match="more than"):
        queue.add(1, Cancel(2), 1)
    queue.ask()
    queue.confirm(1)
    queue.take(1)
    queue.add(1, Cancel(3), READS_BYTES_MAX)
