"""The log of one member of a Raft cluster."""

from __future__ import annotations

import pytest

from holdfast.errors import InternalError
from holdfast.store.raft.log import EntryLog
from holdfast.store.raft.messages import Configuration, LogEntry, LogSnapshot


def entries(*terms: int, start: int = 2) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(term, index) for index, term in enumerate(terms, start))


def log_of(*terms: int) -> EntryLog:
    """Make a log that begins behind index 1 of term 1."""
    log = EntryLog(1, 1)
    for entry in entries(*terms):
        log.append(entry)
    return log


def terms_of(log: EntryLog) -> list[int | None]:
    return [log.term(index) for index in range(log.base_index, log.last_index + 1)]


def test_an_empty_log_ends_where_it_begins() -> None:
    log = EntryLog(4, 2)
    assert (log.last_index, log.last_term, log.committed) == (4, 2, 4)
    assert (log.term(3), log.term(4), log.term(5)) == (None, 2, None)
    assert log.entries_from(5, 100) == ()
    assert log.entries_from(4, 100) is None


def test_entries_follow_without_a_gap_and_terms_never_decrease() -> None:
    """RL-1."""
    log = log_of(1, 2)
    assert terms_of(log) == [1, 1, 2]
    for wrong in (LogEntry(2, 3), LogEntry(2, 5), LogEntry(1, 4)):
        with pytest.raises(InternalError, match="RL-1"):
            log.append(wrong)


def test_a_message_takes_one_entry_at_least_and_others_that_fit() -> None:
    log = EntryLog(0, 0)
    for index in range(1, 5):
        log.append(LogEntry(1, index, b"x" * 10))
    sizes = {limit: log.entries_from(2, limit) for limit in (0, 19, 20, 30, 99)}
    assert {limit: len(found or ()) for limit, found in sizes.items()} == {
        0: 1,
        19: 1,
        20: 2,
        30: 3,
        99: 3,
    }


@pytest.mark.parametrize(
    ("index", "term", "current"),
    [(3, 2, True), (4, 2, True), (2, 2, False), (1, 3, True), (9, 1, False)],
)
def test_a_log_is_current_by_its_last_term_and_then_by_its_length(
    index: int, term: int, current: bool
) -> None:
    assert log_of(1, 2).is_current(index, term) is current


def test_entries_are_taken_only_behind_an_entry_that_both_have() -> None:
    """RL-3."""
    log = log_of(1, 1)
    assert log.adopt(4, 1, entries(2, start=5)) is None
    assert log.adopt(3, 2, entries(2, start=4)) is None
    assert log.adopt(3, 1, entries(2, 2, start=4)) == 5
    assert terms_of(log) == [1, 1, 1, 2, 2]


def test_what_contradicts_a_leader_is_removed_and_what_agrees_is_kept() -> None:
    """RL-3."""
    log = log_of(1, 2, 2, 2)
    assert log.adopt(1, 1, entries(1, 2)) == 3  # older news: the rest stays
    assert terms_of(log) == [1, 1, 2, 2, 2]
    assert log.adopt(2, 1, entries(2, 3, start=3)) == 4
    assert terms_of(log) == [1, 1, 2, 3]
    assert log.adopt(4, 3, ()) == 4


def test_what_is_committed_is_never_taken_back() -> None:
    """RL-2."""
    log = log_of(1, 2, 2)
    assert log.commit_to(3)
    assert not log.commit_to(3)
    assert not log.commit_to(2)
    assert log.committed == 3
    with pytest.raises(InternalError, match="RL-2"):
        log.adopt(2, 1, entries(3, start=3))
    with pytest.raises(InternalError, match="RL-2"):
        log.restore(LogSnapshot(3, 2, Configuration((1,)), b""))
    with pytest.raises(InternalError, match="commit of 5, but the log ends at 4"):
        log.commit_to(5)
    assert terms_of(log) == [1, 1, 2, 2]


def test_committed_entries_can_be_dropped() -> None:
    log = log_of(1, 2, 3)
    log.commit_to(3)
    with pytest.raises(InternalError, match="drop of 4, but only 3 is committed"):
        log.drop_to(4)
    log.drop_to(3)
    log.drop_to(2)
    assert (log.base_index, log.base_term) == (3, 2)
    assert terms_of(log) == [2, 3]
    assert log.entry(4) == LogEntry(3, 4)
    assert log.entries_from(3, 100) is None


def test_a_snapshot_replaces_all_that_was_there() -> None:
    log = log_of(1, 2)
    log.restore(LogSnapshot(9, 4, Configuration((1,)), b""))
    assert (log.last_index, log.last_term, log.committed) == (9, 4, 9)
