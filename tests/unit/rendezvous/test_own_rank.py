"""What a node knows of its place, and when it reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import PeerViolation
from holdfast.ids import NodeId, RunId
from holdfast.rendezvous.model import Keys, MemberRank, RoundRecord, Status
from holdfast.rendezvous.own_rank import OwnRank
from holdfast.store.ops import Entry, Get

KEYS = Keys(RunId("job"))
A = NodeId("a")
FIRST = RoundRecord(1, Status.COMPLETE, "so", size=2, roll="1/z")
NEXT = replace(FIRST, number=2, status=Status.FORMING)
KEY = KEYS.place("1/z", A)


def found(rank: int) -> Entry:
    return Entry(KEY, MemberRank(rank).encode(), 1)


def test_a_place_is_read_once_and_known_while_the_next_round_is_formed() -> None:  # RM-4
    own = OwnRank(KEYS, A)
    assert own.next_op(FIRST, 0) == Get(KEY)
    assert own.rank(FIRST) is None
    assert own.answered(KEY, found(1), FIRST)
    for record in (FIRST, NEXT):
        assert own.rank(record) == 1
        assert own.next_op(record, 0) is None


def test_a_node_without_a_place_looks_once() -> None:
    own = OwnRank(KEYS, A)
    assert own.answered(KEY, None, FIRST)
    assert own.rank(FIRST) is None
    assert own.next_op(FIRST, 0) is None
    later = replace(FIRST, number=2, roll="2/z")
    assert own.next_op(later, 0) == Get(KEYS.place("2/z", A))


@pytest.mark.parametrize(
    ("record", "newest"),
    [
        (None, 0),
        (FIRST, 1),
        (NEXT, 1),
        (RoundRecord(1, Status.FORMING, "it begins"), 0),
        (RoundRecord(7, Status.CLOSED, "over", roll="x"), 0),
    ],
)
def test_nothing_is_read_without_need(record: RoundRecord | None, newest: int) -> None:  # RM-1
    own = OwnRank(KEYS, A)
    assert own.next_op(record, newest) is None
    assert own.rank(record) is None


def test_an_answer_about_another_roll_says_nothing() -> None:
    own = OwnRank(KEYS, A)
    assert not own.answered(KEY, found(0), None)
    assert not own.answered(KEY, found(0), replace(FIRST, roll="2/z"))
    assert own.next_op(FIRST, 0) == Get(KEY)


def test_what_is_no_place_is_refused() -> None:
    with pytest.raises(PeerViolation, match=r"^MemberRank: "):
        OwnRank(KEYS, A).answered(KEY, Entry(KEY, b"junk", 1), FIRST)
