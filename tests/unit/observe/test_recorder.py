"""A recorder keeps the newest steps, tells the story of a cause, and its dumps can be replayed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Step, UsageError
from holdfast.ids import CauseId
from holdfast.observe.recorder import HIDDEN, Record, Recorder, from_plain, load, to_plain
from holdfast.store import ops


class Size(IntEnum):
    SMALL = 1


class Pair(NamedTuple):
    left: int
    right: bytes


@dataclass(frozen=True, slots=True)
class Came:
    cause: CauseId
    what: object = None


@dataclass(frozen=True, slots=True)
class Do:
    cause: CauseId
    size: Size = Size.SMALL


@dataclass(frozen=True, slots=True)
class Login:
    user: str
    secret: str = field(repr=False)


TYPES = (Came, Do, Size, Pair, Step, Login, ops.Get, ops.Entry)
KNOWN = {kind.__name__: kind for kind in TYPES}


def through_json(value: object) -> object:
    return json.loads(json.dumps(value, allow_nan=False))


def test_the_ring_keeps_the_newest_and_counts_the_rest() -> None:
    """OB-1"""
    recorder = Recorder(capacity=2)
    for n in range(5):
        recorder.record(float(n), n)
    assert [record.event for record in recorder] == [3, 4]
    assert (len(recorder), recorder.dropped) == (2, 3)


def test_a_full_ring_has_dropped_nothing_yet() -> None:
    recorder = Recorder(capacity=2)
    recorder.record(0.0, "a")
    recorder.record(0.0, "b")
    assert recorder.dropped == 0


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_ring_without_room_is_refused(capacity: int) -> None:
    with pytest.raises(UsageError, match=f"capacity {capacity}: "):
        Recorder(capacity)


def test_the_story_of_a_cause_is_found_in_events_and_effects() -> None:
    recorder = Recorder()
    mine, other = CauseId("mine"), CauseId("other")
    recorder.record(1.0, Came(mine), [Do(mine)], "it came")
    recorder.record(2.0, Came(other), [Do(other)], "not mine")
    recorder.record(3.0, "a tick without cause", [Do(other), Do(mine)], "it was due")
    assert [record.reason for record in recorder.story(mine)] == ["it came", "it was due"]


def test_a_dump_comes_back_as_the_same_steps() -> None:
    """OB-2"""
    recorder = Recorder()
    what = (ops.Get("k"), ops.Entry("k", b"\x00\xff", 3), Step.TCP, {"a": (1, 2.5)}, math.inf)
    recorder.record(1.5, Came(CauseId("c"), what), [Do(CauseId("c"))], "because")
    recorder.record(2.0, None)
    assert load(through_json(recorder.dump()), TYPES) == tuple(recorder)


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from([Size.SMALL, Step.RESOLVE])
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner).map(tuple),
        st.frozensets(PLAIN),
        st.dictionaries(PLAIN, inner),
        inner.map(lambda value: Came(CauseId("c"), value)),
        st.builds(Pair, st.integers(), st.binary()),
    ),
    max_leaves=10,
)


@given(VALUES)
def test_every_value_survives_json(value: object) -> None:
    again = from_plain(through_json(to_plain(value)), KNOWN)
    assert again == value
    assert type(again) is type(value)


def test_sequences_and_sets_come_back_frozen() -> None:
    assert from_plain(to_plain([1, [2]]), {}) == (1, (2,))
    assert from_plain(to_plain({1, 2}), {}) == frozenset({1, 2})


def test_not_a_number_survives() -> None:
    again = from_plain(through_json(to_plain(math.nan)), {})
    assert isinstance(again, float)
    assert math.isnan(again)


def test_a_secret_is_not_written() -> None:
    """OB-3"""
    recorder = Recorder()
    recorder.record(0.0, Login("me", "hush"))
    assert "hush" not in json.dumps(recorder.dump())
    (record,) = load(recorder.dump(), TYPES)
    assert record == Record(0.0, Login("me", HIDDEN), (), "")


@pytest.mark.parametrize("value", [object(), Came, 1j, (1, object())])
def test_what_cannot_be_read_back_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="cannot be recorded"):
        to_plain(value)


GOOD: dict[str, object] = {"now": 0.0, "event": None, "effects": [], "reason": ""}


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        (None, "not a recorder's dump"),
        ({}, "not a recorder's dump"),
        ({"version": 2, "steps": []}, "of version 1"),
        ({"version": 1}, "malformed, KeyError"),
        ({"version": 1, "steps": 5}, "malformed, TypeError"),
        ({"version": 1, "steps": [GOOD | {"event": {"$bytes": "zz"}}]}, "malformed, ValueError"),
        ({"version": 1, "steps": [GOOD | {"event": {"$type": "Do"}}]}, "malformed, TypeError"),
        ({"version": 1, "steps": [GOOD | {"event": {"$type": "Nope"}}]}, "unknown class 'Nope'"),
        ({"version": 1, "steps": [GOOD | {"event": {"x": 1}}]}, "has none of"),
    ],
)
def test_what_is_no_dump_is_refused_in_one_line(dump: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load(dump, TYPES)
    assert "\n" not in str(caught.value)
