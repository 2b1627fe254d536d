"""What a leader knows of each other member."""

from __future__ import annotations

from holdfast.store.raft.progress import IN_FLIGHT_MAX, FollowerProgress, Sending, quorum_value


def test_a_probe_is_one_message_at_a_time() -> None:
    progress = FollowerProgress(5)
    assert not progress.paused
    progress.sent(7)
    assert progress.paused
    assert progress.next == 5
    assert progress.accepted(7)
    assert not progress.paused
    assert (progress.match, progress.next) == (7, 8)


def test_replication_goes_on_without_answers_up_to_a_limit() -> None:
    """RF-11."""
    progress = FollowerProgress(2, match=1)
    progress.replicate()
    for index in range(2, IN_FLIGHT_MAX + 1):
        progress.sent(index)
        assert not progress.paused
    progress.sent(IN_FLIGHT_MAX + 1)
    assert progress.paused
    progress.freed(1)
    assert progress.full
    progress.free_one()
    assert not progress.full
    progress.freed(IN_FLIGHT_MAX + 1)
    assert progress.next == IN_FLIGHT_MAX + 2


def test_old_news_is_no_news() -> None:
    progress = FollowerProgress(5, match=4)
    assert not progress.accepted(4)
    assert not progress.accepted(2)
    assert (progress.match, progress.next) == (4, 5)


def test_a_probe_that_is_rejected_goes_back() -> None:
    progress = FollowerProgress(9)
    progress.sent(9)
    assert not progress.rejected(4, 2)  # an answer to an older probe
    assert progress.rejected(8, 3)
    assert (progress.next, progress.paused) == (4, False)
    assert progress.rejected(3, 9)
    assert progress.next == 3
    assert progress.rejected(2, 0)
    assert progress.next == 1


def test_a_rejection_that_was_overtaken_takes_nothing_back() -> None:
    """The entries up to `match` may be dropped, and a snapshot would bring nothing new."""
    progress = FollowerProgress(17, match=16)
    assert not progress.rejected(16, 12)
    assert progress.next == 17
    progress = FollowerProgress(20, match=16)
    assert progress.rejected(19, 12)
    assert progress.next == 17


def test_a_rejection_ends_replication_unless_it_is_old() -> None:
    progress = FollowerProgress(5, match=4)
    progress.replicate()
    progress.sent(8)
    assert not progress.rejected(4, 0)
    assert progress.next == 9
    assert progress.rejected(6, 5)
    assert progress.sending is Sending.PROBE
    assert progress.next == 5


def test_nothing_is_sent_while_a_snapshot_is_under_way() -> None:
    progress = FollowerProgress(5)
    progress.await_snapshot()
    progress.snapshot = 9
    assert progress.paused
    progress.probe()
    assert not progress.paused
    assert progress.snapshot is None


def test_what_a_majority_reaches() -> None:
    assert quorum_value([5, 1, 3], 2) == 3
    assert quorum_value([5, 1, 3, 4], 3) == 3
    assert quorum_value([7], 1) == 7
