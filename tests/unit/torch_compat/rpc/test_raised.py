"""What a Python function raised, for callers by torch's names."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from torch.distributed.rpc import internal

from holdfast.torch_compat.rpc import agents, raised
from holdfast.torch_compat.rpc.raised import REPR_MAX, TEXT_MAX, raise_again, run
from tests.unit.torch_compat.group import group
from tests.unit.torch_compat.rpc.test_calls import remote, udf

HOPS = 20
A_HOP = 2_000
"""More characters than one worker adds here: what is short of an error, and a few frames."""


@pytest.fixture(autouse=True)
def at_a(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    with group("a", "b"):
        yield
    capfd.readouterr()  # it is printed where it is raised


def fail(error: Exception) -> NoReturn:
    raise error


def text_of(error: Exception) -> str:
    value = run(fail, (error,), {})
    assert value.exception_type is type(error)
    return str(value.msg)


def passed_on(error: Exception, hops: int) -> Exception:
    """Return an error as the caller gets it that so many workers pass on, one to the other."""
    for _ in range(hops):
        try:
            raise_again(run(fail, (error,), {}))
        except Exception as again:
            error = again
    return error


def call_on(hops: int, how: Any, error: Exception) -> Any:
    if not hops:
        raise error
    return how(agents.current().places.find("b").info, call_on, hops - 1, how, error)


def waiting(*args: Any) -> Any:
    return udf(*args).wait()


def fetching(*args: Any) -> Any:
    return remote(*args).to_here()


class Choosy(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


class Shy(Exception):
    def __repr__(self) -> str:
        raise KeyError("no")


class Harsh(BaseException):
    pass


def test_a_function_returns_its_value() -> None:
    assert run(dict, ([("a", 1)],), {"b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(Harsh):
        run(fail, (Harsh(),), {})


def test_the_text_is_torchs(capfd: pytest.CaptureFixture[str]) -> None:
    """Proves TX-1."""
    text = text_of(ValueError("no way"))
    assert text.startswith(
        "On WorkerInfo(id=0, name=a):\nValueError('no way')\nTraceback (most rec"
    )
    assert text.endswith("\nValueError: no way\n")
    assert text in capfd.readouterr().err
    # As torch's own tests have it: line breaks are not escaped.
    several = text_of(ValueError("\nfirst line, it's \n the last"))
    assert several == several.encode().decode("unicode_escape")


@pytest.mark.parametrize("text", ["no way", "Übung", r"C:\new \x", "two\nlines 'a' \"b\"", ""])
@pytest.mark.parametrize("kind", [ValueError, KeyError, Exception])
def test_the_caller_raises_the_type_with_the_text(kind: type[Exception], text: str) -> None:
    """Proves TX-1: whatever the text is. torch made two letters of one, or hid the error."""
    told = run(fail, (kind(text),), {})
    with pytest.raises(kind) as error:
        raise_again(told)
    assert type(error.value) is kind
    assert str(error.value) == told.msg
    assert text in told.msg
    assert str(pickle.loads(pickle.dumps(error.value))) == told.msg


def test_a_type_that_takes_no_text_is_told_in_torchs_words() -> None:
    told = internal.RemoteException("no way", Choosy)
    with pytest.raises(RuntimeError, match=r"Failed to create .*two.* remote side was no way"):
        raise_again(told)
    assert "\nShy(...)\n" in text_of(Shy("no way"))


@pytest.mark.parametrize("kind", [ValueError, KeyError])
@pytest.mark.parametrize("how", [waiting, fetching])
def test_a_text_grows_by_one_traceback_at_each_worker(how: Any, kind: type[Exception]) -> None:
    """Proves TX-2, by calls within calls. By torch's Python it had a thousand million letters."""
    with pytest.raises(Exception, match="no way") as error:
        call_on(HOPS, how, kind("Übung: no way"))
    text = str(error.value)
    assert isinstance(error.value, RuntimeError if how is waiting and kind is KeyError else kind)
    assert len(text) < HOPS * A_HOP
    assert text.count(", in call_on\n    return how(") == HOPS - 1
    assert text.count(", in call_on\n    raise error\n") == 1
    assert f"\n{kind.__name__}('Übung: no way')\nTraceback" in text
    assert "\\" not in text


@pytest.mark.parametrize("hops", [1, 2, HOPS])
def test_a_text_is_as_long_as_it_may_be(monkeypatch: pytest.MonkeyPatch, hops: int) -> None:
    """Proves TX-3: at the limit, and past it."""
    whole = str(passed_on(ValueError("no way"), hops))
    monkeypatch.setattr(raised, "TEXT_MAX", len(whole))
    assert str(passed_on(ValueError("no way"), hops)) == whole
    monkeypatch.setattr(raised, "TEXT_MAX", len(whole) - 1)
    cut = str(passed_on(ValueError("no way"), hops))
    assert len(cut) < len(whole) + len(raised._GAP)
    assert cut.count(raised._GAP) == 1
    assert cut.startswith("On WorkerInfo(id=0, name=a):\n")
    assert cut.endswith("\nValueError: no way\n")


@pytest.mark.parametrize("size", [REPR_MAX, 10 * TEXT_MAX])
def test_what_an_error_says_is_bounded(size: int) -> None:
    """Proves TX-2 and TX-3: a text that is long at once stays as long."""
    first, last = (len(text_of(passed_on(ValueError("x" * size), hops))) for hops in (0, HOPS))
    assert first < TEXT_MAX + len(raised._GAP) + 1
    assert last < min(TEXT_MAX + len(raised._GAP), size + HOPS * A_HOP) + 1
    short = text_of(ValueError("x" * size)).splitlines()[1]
    assert (len(short), short[-3:]) == (REPR_MAX, "...")
