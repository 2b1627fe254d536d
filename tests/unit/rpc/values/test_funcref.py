"""Functions by name: the same function comes back, and what has no name is left alone."""

from __future__ import annotations

import functools
import importlib
import operator
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.rpc.values.funcref import encode_function, resolve_function


def here() -> None:
    """Do nothing."""


class Thing:
    @staticmethod
    def inside() -> None:
        """Do nothing, in a class."""

    def method(self) -> None:
        """Do nothing, of an object."""


@pytest.mark.parametrize("function", [here, operator.add, len, functools.reduce])
def test_a_function_of_a_module_is_found_again_by_its_name(function: Callable[..., Any]) -> None:
    name = encode_function(function)
    assert isinstance(name, str)
    assert resolve_function(name) is function


@pytest.mark.parametrize(
    "other",
    [
        lambda: None,
        Thing,
        Thing.inside,
        Thing().method,
        [].append,
        functools.partial(here),
    ],
)
def test_everything_else_is_left_alone(other: object) -> None:
    assert encode_function(other) is other


@pytest.mark.parametrize("other", [None, 3, "operator:add"])
def test_what_cannot_be_called_is_refused(other: object) -> None:
    with pytest.raises(UsageError, match="must be something that can be called"):
        encode_function(other)


def test_a_function_that_its_module_has_no_more_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = here
    monkeypatch.setattr(sys.modules[__name__], "here", lambda: None)
    assert encode_function(old) is old
    monkeypatch.setattr(old, "__module__", "no_such_module")
    assert encode_function(old) is old


def test_a_name_means_what_the_module_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    name, replaced = encode_function(here), Thing.inside
    monkeypatch.setattr(sys.modules[__name__], "here", replaced)
    assert resolve_function(name) is replaced


def test_a_module_that_is_not_loaded_yet_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_there.py").write_text("def work():\n    return 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert resolve_function("only_there:work")() == 7
    finally:
        sys.modules.pop("only_there", None)


def test_a_name_of_nothing_says_so() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        resolve_function("no_such_module:work")
    with pytest.raises(AttributeError, match=r"'nothing' on <module 'operator'"):
        resolve_function("operator:nothing")


def test_a_module_that_another_thread_imports_just_now_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "slow_import", (begun, goes_on), raising=False)
    (tmp_path / "slow_to_import.py").write_text(
        "import sys\n"
        "begun, goes_on = sys.slow_import\n"
        "begun.set()\n"
        "assert goes_on.wait(20)\n"
        "def late(): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importing = threading.Thread(target=importlib.import_module, args=("slow_to_import",))
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(resolve_function("slow_to_import:late")))
    try:
        importing.start()
        assert begun.wait(20)
        asking.start()
        asking.join(0.05)
        goes_on.set()
        asking.join(20)
        assert [function.__name__ for function in found] == ["late"]
    finally:
        goes_on.set()
        importing.join(20)
        sys.modules.pop("slow_to_import", None)
