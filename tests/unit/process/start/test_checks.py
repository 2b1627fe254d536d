"""What is missing is told before anything runs, and nothing else is refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.process.spec import Entrypoint, Module, Program, Script
from holdfast.process.start.checks import check_entrypoint
from holdfast.process.start.spawn import Starter
from tests.unit.process.workers import launch_of


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        (Script("no/such.py"), "script 'no/such.py': no such file"),
        (Module("no_such_module.part"), "module 'no_such_module.part': no module named"),
        (Module("plain.nothere"), "module 'plain.nothere': no module named 'plain.nothere'"),
        (Module("plain.inner.x.y"), "module 'plain.inner.x.y': no module named 'plain.inner.x'"),
        (Module("alone.x"), "module 'alone.x': no module named 'alone.x'"),
        (Module("plain.inner"), "module 'plain.inner': it is a package, and has no __main__"),
        (Module("bare"), "module 'bare': it is a package, and has no __main__"),
        (Program("no-such-program"), "program 'no-such-program': not found in PATH"),
        (Program("./no-such-program"), "program './no-such-program': no such file"),
        (Program("./plain.txt"), "program './plain.txt': it is not executable"),
        (Script("plain.txt", python="no-such-python"), "python 'no-such-python': not found"),
    ],
)
def test_what_is_missing_is_told_before_anything_runs(
    starter: Starter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entrypoint: Entrypoint,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.txt").touch(mode=0o644)
    (tmp_path / "alone.py").touch()
    (tmp_path / "bare").mkdir()
    (tmp_path / "plain" / "inner").mkdir(parents=True)
    for package in ("plain", "plain/inner"):
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('nobody runs this')")
    with pytest.raises(UsageError, match=message) as caught:
        starter.start(launch_of(tmp_path, entrypoint), None, None)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=message):
        check_entrypoint(entrypoint, os.environ)


@pytest.mark.parametrize("name", ["json.tool", "encodings.utf_8", "own.more", "own.odd", "own"])
def test_a_module_that_may_be_there_is_left_to_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Modules, and what only the code of a package knows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("__path__.append('elsewhere')")
    check_entrypoint(Module(name), os.environ)


def test_a_finder_that_fails_refuses_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "plain.module":
                raise RuntimeError("never seen such a name")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "__init__.py").touch()
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    check_entrypoint(Module("plain.module"), os.environ)
    with pytest.raises(UsageError, match=r"no module named 'plain\.other'"):
        check_entrypoint(Module("plain.other"), os.environ)
