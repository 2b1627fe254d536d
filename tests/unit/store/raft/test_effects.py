"""What a member of a Raft cluster wants done."""

from __future__ import annotations

from holdfast.store.raft.effects import Became, Committed, Role
from holdfast.store.raft.messages import LogEntry


def test_a_change_of_role_says_why() -> None:
    became = Became(Role.LEADER, 3, 1, "a majority voted for it")
    assert str(became.role) == "leader"
    assert became.reason == "a majority voted for it"


def test_effects_are_values() -> None:
    assert Committed(LogEntry(1, 2, b"x")) == Committed(LogEntry(1, 2, b"x"))
