"""Who packs and unpacks references, thread by thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.rpc import passing


class Packing:
    """Stands for a message that is being packed."""

    def __init__(self) -> None:
        self.undone = 0

    def undo(self) -> None:
        self.undone += 1


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> Packing:
    made = Packing()
    monkeypatch.setattr(passing.here, "packing", made, raising=False)
    monkeypatch.setattr(passing.here, "unpacking", made, raising=False)
    return made


def test_outside_of_a_call_nothing_is_packed_or_unpacked() -> None:
    with pytest.raises(UsageError, match="'x': can only be pickled as part of a call"):
        passing.sender("x")
    with pytest.raises(UsageError, match="can only be read as part of a call"):
        passing.receiver()
    passing.start_over()


def test_within_a_call_it_is_known_who_does(packing: Packing) -> None:
    assert passing.sender("x") is packing  # type: ignore[comparison-overlap]
    assert passing.receiver() is packing  # type: ignore[comparison-overlap]


def test_each_thread_packs_for_itself(packing: Packing) -> None:
    found: list[Any] = []

    def look() -> None:
        found.append(getattr(passing.here, "packing", None))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [None]


def test_starting_over_takes_back_what_was_packed(packing: Packing) -> None:
    passing.start_over()
    assert packing.undone == 1
