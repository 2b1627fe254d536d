"""What was given in answers: listed on request, refused after that, and forgotten when settled."""

from __future__ import annotations

import pytest

from holdfast.rpc.rref import reply_references
from holdfast.rpc.rref.reply_references import RecentKeys, ReplyReferences
from holdfast.rpc.wire.tickets import Number, Ticket


def ticket(serial: int) -> Ticket:
    return Ticket(Number("me", serial), "me", Number("me", -serial), "")


class Given:
    """ReplyReferences, and what of them is settled."""

    def __init__(self) -> None:
        self.answers = ReplyReferences(2)
        self.settled: set[Ticket] = set()

    def add(self, caller: str, call: int, *tickets: Ticket) -> bool:
        return self.answers.add(caller, call, list(tickets), self._is_open)

    def ask(self, caller: str, call: int) -> list[Ticket]:
        return self.answers.ask(caller, call, self._is_open)

    def _is_open(self, ticket: Ticket) -> bool:
        return ticket not in self.settled


@pytest.fixture
def answers() -> Given:
    return Given()


def test_references_that_are_not_settled_are_listed(answers: Given) -> None:
    """RA-1"""
    assert answers.add("a", 1, ticket(1), ticket(2))
    assert answers.add("a", 2, ticket(3))
    assert answers.add("b", 1, ticket(4))
    assert answers.add("a", 1, ticket(5))  # answered again
    answers.settled.add(ticket(2))
    for _ in range(2):
        assert answers.ask("a", 1) == [ticket(1), ticket(5)]
    assert answers.ask("a", 7) == []


def test_an_answer_that_was_asked_for_gives_nothing(answers: Given) -> None:
    """RA-2, and RA-3 for what is older than the newest ones."""
    for call in (1, 2):
        assert answers.ask("a", call) == []
        assert not answers.add("a", call, ticket(call))
    assert answers.ask("b", 1) == []
    assert answers.add("a", 1, ticket(1))
    assert not answers.add("a", 2, ticket(2))


def test_settled_calls_are_forgotten(answers: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    """RA-3"""
    monkeypatch.setattr(reply_references, "SWEEP_LEAST", 4)
    answers.answers._sweep_at = 4
    sizes = []
    for call in range(1, 40):
        assert answers.add("a", call, ticket(call))
        if call > 8:
            answers.settled.add(ticket(call))
        sizes.append(len(answers.answers))
    assert 4 < max(sizes) <= 18
    assert answers.ask("a", 3) == [ticket(3)]


def test_the_newest_keys_are_remembered() -> None:
    memory = RecentKeys(2)
    for key in "abc":
        memory.add(key)
    assert ("a" in memory, "b" in memory, "c" in memory, len(memory)) == (False, True, True, 2)
