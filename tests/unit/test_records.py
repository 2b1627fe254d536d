"""Our dataclass beside the library's: whatever one can see of them is the same."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from holdfast import records

Maker = Callable[..., Callable[[type[Any]], type[Any]]]
# To type checkers they are one; here both are wanted.
OURS: Maker = vars(records)["dataclass"]
LIBRARYS: Maker = dataclasses.dataclass


@records.dataclass(frozen=True, slots=True)
class Point:
    """One that can be pickled."""

    x: int
    y: int = 2


def shapes(dataclass: Maker) -> dict[str, type[Any]]:
    """Return classes of all the kinds that we have, made by this decorator."""

    @dataclass(frozen=True, slots=True)
    class Empty:
        pass

    @dataclass(frozen=True, slots=True)
    class One:
        """Has a text."""

        value: float

    @dataclass(frozen=True, slots=True)
    class Many:
        a: int
        b: str = "b"
        c: list[int] = dataclasses.field(default_factory=list)
        d: int = dataclasses.field(default=4, repr=False)
        e: int = dataclasses.field(default=5, compare=False)
        kind: ClassVar[str] = "many"

        def twice(self) -> int:
            return 2 * self.a

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named(One):
        a: int
        b: int = 2

        def __post_init__(self) -> None:
            if self.b > 9:
                raise ValueError(f"b {self.b}")

    @dataclass(frozen=True, slots=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "mine"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and abs(other.a - self.a) < 2

        def __hash__(self) -> int:
            return 1

    @dataclass(frozen=True, slots=True)
    class Unlike:  # noqa: PLW1641  # the decorator does
        a: int

        def __eq__(self, other: object) -> bool:
            return False

    @dataclass(slots=True)
    class Open:
        a: int

    found = (Empty, One, Many, Named, Own, Unlike, Open)
    return {cls.__name__: cls for cls in found}


@pytest.fixture(params=["ours", "the library's"])
def made(request: pytest.FixtureRequest) -> dict[str, type[Any]]:
    return shapes(OURS if request.param == "ours" else LIBRARYS)


def test_arguments_and_defaults(made: dict[str, type[Any]]) -> None:
    many = made["Many"](1)
    assert (many.a, many.b, many.c, many.d, many.e, many.kind) == (1, "b", [], 4, 5, "many")
    assert made["Many"](1, c=[1]).c == [1]
    assert made["Many"](1).c is not many.c
    assert many.twice() == 2
    named = made["Named"](0.5, a=1)
    assert (named.value, named.a, named.b) == (0.5, 1, 2)
    with pytest.raises(TypeError, match=r"Named\.__init__\(\) takes 2 positional arguments"):
        made["Named"](0.5, 1)
    with pytest.raises(TypeError, match=r"One\.__init__\(\) missing 1 required .*'value'"):
        made["One"]()
    with pytest.raises(ValueError, match="b 10"):
        made["Named"](0.5, a=1, b=10)
    assert str(inspect.signature(made["Many"])).startswith("(a")


def test_equality_and_hash(made: dict[str, type[Any]]) -> None:
    one, many = made["One"], made["Many"]
    nan = float("nan")
    assert one(1.0) == one(1.0)
    assert one(nan) == one(nan)
    assert one(1.0) != one(2.0)
    assert made["Empty"]() == made["Empty"]()
    assert made["Empty"]() != one(1.0)
    assert many(1, e=7) == many(1, e=8)
    assert hash(one(1.0)) == hash(one(1.0))
    assert hash(made["Empty"]()) == hash(made["Empty"]())
    with pytest.raises(TypeError, match="unhashable"):
        hash(many(1))
    assert made["Own"](1) == made["Own"](2)
    assert hash(made["Own"](5)) == 1
    assert made["Unlike"](1) != made["Unlike"](1)
    assert hash(made["Unlike"](1)) == hash(made["Unlike"](1))


def test_texts(made: dict[str, type[Any]]) -> None:
    shown = [repr(made["Empty"]()), repr(made["Many"](1)), repr(made["Own"](1))]
    assert [text.rpartition(".")[2] for text in shown] == [
        "Empty()",
        "Many(a=1, b='b', c=[], e=5)",
        "mine",
    ]
    assert made["One"].__doc__ == "Has a text."
    assert (made["Many"].__doc__ or "").startswith("Many")


def test_nothing_changes_them(made: dict[str, type[Any]]) -> None:
    one = made["One"](1.0)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'value'"):
        one.value = 2.0
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'value'"):
        del one.value
    assert not hasattr(one, "__dict__")
    opened = made["Open"](1)
    opened.a = 2
    assert opened == made["Open"](2)


def test_a_name_that_is_no_field_is_refused_too() -> None:
    one = shapes(OURS)["One"](1.0)  # the library's raises a TypeError by mistake
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'other'"):
        one.other = 2.0


def test_what_the_library_offers_for_them(made: dict[str, type[Any]]) -> None:
    many = made["Many"](1)
    assert [field.name for field in dataclasses.fields(many)] == ["a", "b", "c", "d", "e"]
    assert dataclasses.replace(many, a=2) == made["Many"](2)
    assert dataclasses.asdict(many) == {"a": 1, "b": "b", "c": [], "d": 4, "e": 5}
    assert made["Many"].__match_args__ == ("a", "b", "c", "d", "e")
    assert copy.deepcopy(many) == many


def test_they_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1, 2)


def test_a_field_that_is_no_argument_is_refused() -> None:
    class Wrong:
        a: int = dataclasses.field(default=1, init=False)

    with pytest.raises(TypeError, match=r"Wrong\.a: every field must be an argument"):
        OURS(frozen=True, slots=True)(Wrong)
