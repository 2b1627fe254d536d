"""Acting after a module has been imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.torch_compat.after import AfterImport

NAME = "holdfast_test_followed"


@pytest.fixture(name="seen")
def _seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Have a module that is followed; return what is seen of it then."""
    (tmp_path / f"{NAME}.py").write_text("value = 1\n", encoding="utf-8")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[Any] = []

    def act(module: ModuleType) -> None:
        seen.append(module.value)
        module.__dict__["value"] = 2

    AfterImport(NAME, act)
    return seen


def test_it_is_done_when_the_module_has_been_run(seen: list[Any]) -> None:
    """Proves AF-1."""
    assert importlib.import_module(NAME).value == 2
    assert importlib.import_module(NAME).value == 2
    assert seen == [1]
    assert importlib.reload(sys.modules[NAME]).value == 2
    assert seen == [1, 1]


def test_it_runs_also_if_the_module_was_looked_up_before(seen: list[Any]) -> None:
    """Proves AF-1."""
    for _ in range(2):
        assert importlib.util.find_spec(NAME) is not None
    assert seen == []
    assert importlib.import_module(NAME).value == 2
    assert seen == [1]


def test_a_module_that_fails_is_followed_by_nothing_until_it_does_not(
    seen: list[Any], tmp_path: Path
) -> None:
    source = tmp_path / f"{NAME}.py"
    source.write_text("raise ValueError('not yet')\n", encoding="utf-8")
    with pytest.raises(ValueError, match="not yet"):
        importlib.import_module(NAME)
    assert seen == []
    source.write_text("value = 1\n", encoding="utf-8")
    importlib.invalidate_caches()
    assert importlib.import_module(NAME).value == 2


def test_what_is_not_there_stays_so(seen: list[Any], tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.py").unlink()
    importlib.invalidate_caches()
    assert importlib.util.find_spec(NAME) is None
    (tmp_path / NAME).mkdir()  # of a folder alone nothing is run
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert seen == []


def test_several_may_follow_the_same_module(seen: list[Any]) -> None:
    AfterImport(NAME, lambda module: seen.append(module.__name__))
    importlib.import_module(NAME)
    assert seen == [1, NAME]
