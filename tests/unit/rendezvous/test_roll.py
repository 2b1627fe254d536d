"""The roll of a round, page by page."""

from __future__ import annotations

import pytest

from holdfast.errors import PeerViolation
from holdfast.ids import NodeId, RunId
from holdfast.rendezvous.decide import Decision
from holdfast.rendezvous.model import (
    PAGE_MEMBERS,
    Keys,
    Member,
    MemberRank,
    Page,
    Progress,
    RoundRecord,
    Status,
)
from holdfast.rendezvous.roll import Draft, read_roll
from holdfast.store.keyspace import Keyspace
from holdfast.store.ops import Entry, Get, ListPrefix, MultiSet

KEYS = Keys(RunId("job"))
ROLL = "1/a.0.1"


def member(number: int) -> Member:
    return Member(NodeId(f"n{number}"), f"host{number}", "10.0.0.1", number)


def draft(size: int) -> Draft:
    members = tuple(map(member, range(size)))
    record = RoundRecord(1, Status.COMPLETE, "so", size=size)
    decision = Decision(record, Progress(1, size, 0, (), None, "so"), None, members)
    return Draft(ROLL, decision, record, KEYS)


@pytest.mark.parametrize(
    ("size", "pages"), [(1, 1), (PAGE_MEMBERS, 1), (PAGE_MEMBERS + 1, 2), (1000, 10)]
)
def test_it_is_read_as_it_was_written(size: int, pages: int) -> None:  # RM-2
    made, space = draft(size), Keyspace()
    wrote = 0
    while (op := made.next_op()) is not None:
        assert len(op.items) <= PAGE_MEMBERS + 1
        space.apply(op, 0.0)
        made.wrote(op)
        wrote += 1
    assert wrote == pages
    assert read_roll(space.apply(ListPrefix(KEYS.pages(ROLL)), 0.0), KEYS, made.record) == (
        made.members
    )
    for rank in (0, size - 1):
        entry = space.apply(Get(KEYS.place(ROLL, NodeId(f"n{rank}"))), 0.0)
        assert entry is not None
        assert MemberRank.decode(entry.value) == MemberRank(rank)


def test_the_record_names_it() -> None:
    made = draft(2)
    assert made.record.roll == ROLL
    assert made.decision.record == made.record
    assert made.names("n1")
    assert not made.names("n2")


def test_a_page_that_was_not_asked_for_counts_for_nothing() -> None:
    made = draft(1)
    made.wrote(MultiSet(()))
    assert made.next_op() is not None


def page(number: int, *members: int) -> Entry:
    return Entry(KEYS.page(ROLL, number), Page(tuple(map(member, members))).encode(), 1)


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ((), "0 members were read, 3 were expected"),
        ((page(0, 0, 1),), "2 members were read, 3 were expected"),
        ((page(0, 0, 1, 1),), "2 members were read, 3 were expected"),
        ((page(0, 0, 1), page(1, 2, 3)), "4 members were read, 3 were expected"),
        ((page(0, 0, 1), page(2, 2)), "page 1 is missing"),
    ],
)
def test_what_no_leader_would_write_is_refused(pages: tuple[Entry, ...], message: str) -> None:
    record = RoundRecord(1, Status.COMPLETE, "so", size=3, roll=ROLL)
    with pytest.raises(PeerViolation, match=f"^roll '{ROLL}': {message}$"):
        read_roll(pages, KEYS, record)
