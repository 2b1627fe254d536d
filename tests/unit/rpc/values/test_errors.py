"""Errors as bytes and back: as themselves where that can be (RS-1), and made again (RS-2)."""

from __future__ import annotations

import itertools
import sys
import threading
from dataclasses import dataclass
from typing import Any, Self

import pytest

from holdfast.errors import PeerLost, RemoteError
from holdfast.rpc.values.errors import NOTES_MAX, TEXT_MAX, anew, dump_error, in_short, load_error


class Odd(Exception):
    """Its constructor wants more than it passes on."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code


class Choosy(Exception):
    """Only its constructor can make it."""

    def __new__(cls, *, reason: str) -> Self:
        return super().__new__(cls, reason)

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


class Same(Choosy):
    def __copy__(self) -> Self:
        return self


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Rigid(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("no attributes")


class Secretive(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit(3)

    def __str__(self) -> str:
        raise SystemExit(4)


class Deadly(Exception):
    def __reduce__(self) -> Any:
        return sys.exit, (5,)


def raise_(kind: type[BaseException]) -> None:
    raise kind


class Interrupting(Exception):
    """To load it raises another kind of error, however it is made."""

    loading = False

    def __new__(cls, kind: type[BaseException]) -> Self:
        if cls.loading:
            raise kind
        return super().__new__(cls, kind)

    def __reduce__(self) -> Any:
        return raise_, self.args


class Barbed(str):
    """A note whose own code raises when it is loaded."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return raise_, (KeyboardInterrupt,)


BASE_ERRORS = pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, SystemExit, GeneratorExit, BaseException]
)
ODD_ERRORS = pytest.mark.parametrize(
    "error",
    [
        *(Odd(7, "odd"), Frozen(3), Rigid("rigid"), Deadly("x")),
        *(KeyError("x", 2), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")),
    ],
    ids=lambda error: type(error).__name__,
)


def told(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        body, buffers = dump_error(raised, "WorkerInfo(id=1, name=w1)")
    return load_error(body, buffers)


class TestErrors:
    def test_as_itself_with_where_it_came_from(self) -> None:
        error = told(KeyError("x", 2))
        assert type(error) is KeyError
        assert error.args == ("x", 2)
        (note,) = error.__notes__
        assert "It was raised at WorkerInfo(id=1, name=w1)" in note
        assert "raise error" in note
        assert "KeyError" in note

    def test_with_its_attributes(self) -> None:
        error = told(PeerLost("gone", peer="w3", incarnation="abc"))
        assert isinstance(error, PeerLost)
        assert (error.peer, error.incarnation) == ("w3", "abc")

    @ODD_ERRORS
    def test_an_error_arrives_as_itself_even_if_pickle_cannot_rebuild_it(
        self, error: Exception
    ) -> None:
        came = told(error)
        assert type(came) is type(error)
        assert came.args == error.args
        assert {name: vars(came)[name] for name in vars(error)} == vars(error)
        (note,) = came.__notes__
        assert "It was raised at WorkerInfo(id=1, name=w1)" in note
        assert len(told(came).__notes__) == 2

    @BASE_ERRORS
    def test_an_error_while_loading_is_not_raised_here(
        self, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        body, buffers = dump_error(Interrupting(kind), "w1")
        assert isinstance(load_error(body, buffers), Interrupting)  # by its parts
        monkeypatch.setattr(Interrupting, "loading", True)
        came = load_error(body, buffers)
        assert isinstance(came, RemoteError)
        assert came.type_name.endswith("Interrupting")

    @BASE_ERRORS
    def test_an_error_while_copying_is_not_raised_here(
        self, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        error = Interrupting(kind)
        monkeypatch.setattr(Interrupting, "loading", True)
        assert isinstance(anew(error, "w1"), RemoteError)

    def test_a_note_that_is_more_than_a_text_arrives_as_a_text(self) -> None:
        error = Choosy(reason="odd")
        error.add_note(Barbed("noted"))
        note = told(error).__notes__[0]
        assert type(note) is str
        assert note == "noted"

    @ODD_ERRORS
    def test_a_copy_of_an_error_says_the_same_and_keeps_no_frame(self, error: Exception) -> None:
        vars(error)["__notes__"] = ["noted"]
        try:
            raise error from KeyError("cause")
        except Exception:
            made = anew(error, "w1")
        assert made is not error
        assert type(made) is type(error)
        assert (made.args, vars(made)) == (error.args, vars(error))
        assert str(made.__cause__) == "'cause'"
        assert made.__traceback__ is error.__traceback__
        vars(made)["__notes__"].append("by the receiver")
        with pytest.raises(type(error)):
            raise made
        assert vars(error).pop("__notes__") == ["noted"]
        assert made.__traceback__ is not error.__traceback__

    @pytest.mark.parametrize("error", [Choosy(reason="odd"), Same(reason="odd")])
    def test_an_error_that_cannot_be_rebuilt_becomes_a_remote_error(self, error: Exception) -> None:
        made = anew(error, "w1")
        assert isinstance(made, RemoteError)
        assert made.type_name.endswith(type(error).__qualname__)
        assert str(made).endswith(str(error))

    @pytest.mark.parametrize(
        ("error", "name", "message"),
        [
            (Choosy(reason="odd"), "test_errors.Choosy", "odd"),
            (Secretive(), "test_errors.Secretive", "it cannot say what it is"),
            (SystemExit(3), "builtins.SystemExit", "3"),
            (KeyboardInterrupt(), "builtins.KeyboardInterrupt", ""),
            (type("Local", (Exception,), {})("here"), "test_errors.Local", "here"),
            (ValueError(threading.Lock()), "builtins.ValueError", "lock"),
        ],
    )
    def test_as_a_remote_error(self, error: BaseException, name: str, message: str) -> None:
        came = told(error)
        assert isinstance(came, RemoteError)
        assert came.type_name.endswith(name)
        assert message in str(came)
        assert came.worker == "WorkerInfo(id=1, name=w1)"
        assert "Traceback" in came.traceback_text

    def test_through_several_workers(self) -> None:
        came = told(told(Choosy(reason="odd")))
        assert isinstance(came, RemoteError)
        assert came.type_name.endswith(".Choosy")
        assert len(came.__notes__) == 2

    @pytest.mark.parametrize("error", [ValueError("x"), Choosy(reason="x")])
    def test_each_worker_adds_one_note_and_the_notes_are_bounded(self, error: Exception) -> None:
        """RS-3: an error that passes n workers has at most NOTES_MAX notes, of bounded length."""
        error.add_note("noted by its raiser")
        sizes, came = [], told(error)
        for _ in range(3 * NOTES_MAX):
            sizes.append(len(dump_error(came, "w1")[0]))
            came = told(came)
        grown = [after - before for before, after in itertools.pairwise(sizes)]
        assert max(grown) < 3 * min(grown[: NOTES_MAX - 2])  # one note each, in two pickles
        assert sizes[-1] < sizes[NOTES_MAX] + 1000
        first, *notes = came.__notes__
        assert first == "noted by its raiser"
        assert len(notes) == NOTES_MAX
        assert "raise error" in notes[0]
        assert sum("noted by its raiser" in note for note in notes) == 0
        gap = notes[NOTES_MAX // 2]
        assert gap.startswith(f"({2 * NOTES_MAX + 1} notes of workers that it passed are left out")
        assert "left out" not in "".join([*notes[: NOTES_MAX // 2], *notes[NOTES_MAX // 2 + 1 :]])

    def test_a_cause_is_shown_with_its_notes_and_a_chain_of_causes_is_bounded(self) -> None:
        came: BaseException = told(ValueError("the first"))
        for number in range(100):
            try:
                raise ValueError(number) from came
            except ValueError as error:
                came = told(error)
        (note,) = came.__notes__
        assert len(note) < TEXT_MAX + 200
        assert "the first" in note
        assert "characters are left out" in note
        assert "ValueError: 99" in note

    def test_notes_that_are_none(self) -> None:
        error = Choosy(reason="odd")
        vars(error)["__notes__"] = 7
        assert isinstance(told(error), RemoteError)
        assert isinstance(anew(error, "w1"), RemoteError)

    def test_in_short(self) -> None:
        error = KeyError("x")
        error.add_note("noted")
        assert in_short(error) == "KeyError: 'x'"

    def test_a_group(self) -> None:
        came = told(ExceptionGroup("both", [ValueError(1), KeyError(2)]))
        assert isinstance(came, ExceptionGroup)
        assert [type(one) for one in came.exceptions] == [ValueError, KeyError]
