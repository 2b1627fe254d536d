"""The members of a round are read when they are asked for, a page at a time."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.ids import NodeId, RunId
from holdfast.rendezvous import roll_reader
from holdfast.rendezvous.model import Keys, Member, Page, RoundRecord, Status
from holdfast.rendezvous.roll_reader import Roll
from holdfast.store.memory import MemoryStore

KEYS = Keys(RunId("job"))
MEMBERS = tuple(Member(NodeId(f"n{n}"), f"host{n}", "10.0.0.1", n) for n in range(5))
RECORD = RoundRecord(3, Status.COMPLETE, "so", size=5, roll="3/a")


def test_members_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_reader, "PAGE_MEMBERS", 2)
    with MemoryStore() as store:
        for number in range(3):
            page = Page(MEMBERS[2 * number : 2 * number + 2])
            store.set(KEYS.page("3/a", number), page.encode())
        members = Roll(store, KEYS, RECORD)
        assert len(members) == 5
        assert (members[0], members[3], members[-1]) == (MEMBERS[0], MEMBERS[3], MEMBERS[4])
        assert members[1:4] == MEMBERS[1:4]
        assert tuple(members) == MEMBERS
        with pytest.raises(IndexError):
            members[5]
        assert repr(members) == "<5 members of round 3>"


def test_a_page_is_read_once() -> None:
    with MemoryStore() as store:
        store.set(KEYS.page("3/a", 0), Page(MEMBERS).encode())
        members = Roll(store, KEYS, RECORD)
        assert members[0] == MEMBERS[0]
        store.delete(KEYS.page("3/a", 0))
        assert members[4] == MEMBERS[4]


def test_a_list_that_is_not_kept() -> None:
    with (
        MemoryStore() as store,
        pytest.raises(UsageError, match="^round 3 is long over: its members are not kept$"),
    ):
        Roll(store, KEYS, RECORD)[0]
