"""Who packs and unpacks references, thread by thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.rpc import passing


class Holdings:
    """Stands for the references of an agent."""

    def __init__(self) -> None:
        self.taken_back: list[Any] = []

    def not_given(self, tickets: list[Any]) -> None:
        self.taken_back += tickets


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> Any:
    holdings = Holdings()
    monkeypatch.setattr(passing.here, "packing", (holdings, "to", ["ticket"], False))
    monkeypatch.setattr(passing.here, "unpacking", holdings)
    return passing.here.packing


def test_outside_of_a_call_nothing_is_packed_or_unpacked() -> None:
    with pytest.raises(UsageError, match="'x': can only be pickled as part of a call"):
        passing.sender("x")
    with pytest.raises(UsageError, match="can only be read as part of a call"):
        passing.receiver()
    passing.start_over()


def test_within_a_call_it_is_known_who_does(packing: Any) -> None:
    assert passing.sender("x") is packing
    assert passing.receiver() is packing[0]


@pytest.mark.usefixtures("packing")
def test_each_thread_packs_for_itself() -> None:
    found: list[Any] = []

    def look() -> None:
        found.append(passing.here.packing)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [None]


def test_starting_over_takes_back_what_was_packed(packing: Any) -> None:
    passing.start_over()
    holdings, _, tickets, _ = packing
    assert (holdings.taken_back, tickets) == (["ticket"], [])
