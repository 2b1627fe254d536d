"""Values go through JSON and come back as they were; what is damaged is one clear line."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import (
    HoldfastError,
    RendezvousClosed,
    RunOver,
    Step,
    StoreUnavailable,
    TimeoutExpired,
    UsageError,
    WorkersStuck,
)
from holdfast.observe.plain import HIDDEN, Codec
from holdfast.observe.recorder import Part, freeze


class Size(IntEnum):
    SMALL = 1


class Couple(NamedTuple):
    left: int
    right: bytes


@dataclass(frozen=True, slots=True)
class Came:
    what: object = None


@dataclass(frozen=True, slots=True)
class Login:
    user: str
    secret: str = field(repr=False)
    trace: str = field(default="", repr=False)


class Shelf:
    def __init__(self, *books: str) -> None:
        self.books = list(books)


def by_name() -> None:
    """Something that a state may hold."""


CODEC = Codec((Came, Size, Couple, Step, Login), (Shelf,), (by_name,))


def through_json(value: object) -> Any:
    return CODEC.decode(json.loads(json.dumps(CODEC.encode(value), allow_nan=False)))


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.sampled_from([Size.SMALL, Step.TCP, by_name]),
    st.builds(Couple, st.integers(), st.binary()),
)
HASHABLE = st.one_of(st.integers(), st.text(), st.binary(), st.tuples(st.integers(), st.text()))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(HASHABLE, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.builds(Came, inner),
    ),
    max_leaves=10,
)


def same(one: object, other: object) -> bool:
    """Say whether two values are equal and of the same types, all the way down."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, Came) and isinstance(other, Came):
        return same(one.what, other.what)
    return True


@given(VALUES)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    """OB-2."""
    assert same(through_json(value), value)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 5, "text", 0.1, math.inf, -math.inf, b"text", b"\xff", Step.TCP, Size.SMALL),
        *((1, [2, {3: (4,)}], {5}), Couple(1, b"x"), Came(Came((Couple(1, b""),))), by_name),
        *({}, set(), [], ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_value_comes_back(value: object) -> None:
    """OB-2."""
    assert same(through_json(value), value)


def test_what_is_no_number_comes_back() -> None:
    assert math.isnan(through_json(math.nan))


def test_secrets_are_not_written() -> None:
    """OB-3."""
    plain = CODEC.encode(Login("anna", "hunter2", "a long trace"))
    assert plain == {"$type": "Login", "user": "anna"}
    assert CODEC.decode(plain) == Login("anna", HIDDEN)


@pytest.mark.parametrize(
    "error",
    [
        UsageError("wrong"),
        TimeoutExpired("late", waiting_for=("a", "b"), maybe_applied=True),
        StoreUnavailable("gone", step=Step.TCP, address="a:1"),
        RunOver("over", failed=True),
        WorkersStuck("stuck", pids=(1, 2)),
        HoldfastError("something"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_back_with_their_fields(error: HoldfastError) -> None:
    """OB-2."""
    error.add_note("not a field")
    found = through_json(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    known = {name: item for name, item in vars(error).items() if name != "__notes__"}
    assert vars(found) == known


def test_an_error_of_another_package_comes_back_as_what_it_is_to_us() -> None:
    class Theirs(RendezvousClosed):
        """A backend of a third party raises it."""

    found = through_json(Theirs("closed", failed=True))
    assert (type(found), str(found), found.failed) == (RendezvousClosed, "closed", True)


def test_objects_that_change_come_back_as_new_ones() -> None:
    """OB-2."""
    shelf = Shelf("a", "b")
    found = through_json(freeze(shelf, frozenset({list, Shelf})))
    assert type(found) is Shelf
    assert found.books == ["a", "b"]
    assert found.books is not shelf.books


class Unknown(NamedTuple):
    left: int


class Color(IntEnum):
    RED = 1


@dataclass(frozen=True, slots=True)
class Stranger:
    name: str


@pytest.mark.parametrize(
    "value",
    [
        *(object(), Shelf(), Unknown(1), Color.RED, Stranger("x"), ValueError("x"), print),
        *(Came, lambda: None, Part(Unknown, {}), frozenset({1})),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_recorded_is_named(value: object) -> None:
    with pytest.raises(UsageError, match=f"a {type(value).__name__} cannot be recorded"):
        CODEC.encode((value,))


@pytest.mark.parametrize(
    ("plain", "told"),
    [
        ({"$type": "Stranger", "name": "x"}, "'Stranger' is no class that is recorded"),
        ({"$type": "Came", "else": 1}, "TypeError"),
        ({"$type": "Size", "name": "LARGE"}, "KeyError: 'LARGE'"),
        ({"$type": "Size"}, "KeyError: 'name'"),
        ({"$type": "Shelf", "__dict__": 1}, "TypeError"),
        ({"$type": ["Came"]}, "TypeError"),
        ({"$bytes": "xyz"}, "ValueError"),
        ({"$text": 5}, "AttributeError"),
        ({"$float": "much"}, "ValueError"),
        ({"$map": [[1]]}, "ValueError"),
        ({"$map": [[[{"$list": []}], 1]]}, "TypeError: unhashable"),
        ({"$set": 5}, "TypeError"),
        ({"$list": 5}, "TypeError"),
        ({"$function": "print"}, "KeyError: 'print'"),
        ({"$error": "SystemExit", "text": "", "fields": {}}, "KeyError: 'SystemExit'"),
        ({"$error": "UsageError", "text": "", "fields": {"x": 1}}, "TypeError"),
        ({"$error": "UsageError"}, "is no value that was recorded"),
        ({}, "is no value that was recorded"),
    ],
)
def test_what_is_damaged_is_one_usage_error(plain: object, told: str) -> None:
    """OB-7."""
    with pytest.raises(UsageError, match=told) as caught:
        CODEC.decode(plain)
    assert "\n" not in str(caught.value)


def test_what_is_nested_too_deeply_is_a_usage_error() -> None:
    """OB-7."""
    deep: object = ()
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UsageError, match="RecursionError"):
        CODEC.decode(deep)
