"""Packing and unpacking of references, thread by thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.rpc.values import references


class Holdings:
    """Stands for the references of an agent."""

    def __init__(self) -> None:
        self.taken_back: list[Any] = []

    def not_given(self, tickets: list[Any]) -> None:
        self.taken_back += tickets


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> Any:
    rrefs = Holdings()
    monkeypatch.setattr(references.here, "packing", (rrefs, "to", ["ticket"], False))
    monkeypatch.setattr(references.here, "unpacking", (rrefs, True))
    return references.here.packing


def test_outside_of_a_call_nothing_is_packed_or_unpacked() -> None:
    with pytest.raises(UsageError, match="'x': can only be pickled as part of a call"):
        references.sender("x")
    with pytest.raises(UsageError, match="can only be read as part of a call"):
        references.receiver()
    references.start_over()


def test_within_a_call_sender_and_receiver_are_known(packing: Any) -> None:
    assert references.sender("x") is packing
    assert references.receiver() == (packing[0], True)


@pytest.mark.usefixtures("packing")
def test_each_thread_packs_for_itself() -> None:
    found: list[Any] = []

    def look() -> None:
        found.append(references.here.packing)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [None]


def test_starting_over_takes_back_the_packed_references(packing: Any) -> None:
    references.start_over()
    rrefs, _, tickets, _ = packing
    assert (rrefs.taken_back, tickets) == (["ticket"], [])
