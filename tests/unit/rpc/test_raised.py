"""Errors as bytes and back: as themselves where that can be (RS-1), and made again (RS-2)."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import Any, Self

import pytest

from holdfast.errors import PeerLost, RemoteError
from holdfast.rpc.raised import anew, dump_error, load_error


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
    def test_as_itself_though_pickle_cannot_make_it(self, error: Exception) -> None:
        came = told(error)
        assert type(came) is type(error)
        assert came.args == error.args
        assert {name: vars(came)[name] for name in vars(error)} == vars(error)
        (note,) = came.__notes__
        assert "It was raised at WorkerInfo(id=1, name=w1)" in note
        assert len(told(came).__notes__) == 2

    @ODD_ERRORS
    def test_another_one_says_the_same_and_keeps_nothing_that_this_one_passes(
        self, error: Exception
    ) -> None:
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
        vars(made)["__notes__"].append("by who was told")
        with pytest.raises(type(error)):
            raise made
        assert vars(error).pop("__notes__") == ["noted"]
        assert made.__traceback__ is not error.__traceback__

    @pytest.mark.parametrize("error", [Choosy(reason="odd"), Same(reason="odd")])
    def test_what_cannot_be_made_again_is_told_by_a_remote_error(self, error: Exception) -> None:
        made = anew(error, "w1")
        assert isinstance(made, RemoteError)
        assert made.type_name.endswith(type(error).__qualname__)
        assert str(made).endswith(str(error))

    @pytest.mark.parametrize(
        ("error", "name", "message"),
        [
            (Choosy(reason="odd"), "test_raised.Choosy", "odd"),
            (Secretive(), "test_raised.Secretive", "it cannot say what it is"),
            (SystemExit(3), "builtins.SystemExit", "3"),
            (KeyboardInterrupt(), "builtins.KeyboardInterrupt", ""),
            (type("Local", (Exception,), {})("here"), "test_raised.Local", "here"),
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

    def test_a_group(self) -> None:
        came = told(ExceptionGroup("both", [ValueError(1), KeyError(2)]))
        assert isinstance(came, ExceptionGroup)
        assert [type(one) for one in came.exceptions] == [ValueError, KeyError]
