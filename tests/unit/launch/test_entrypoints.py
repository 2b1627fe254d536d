"""A function or a command becomes an entry point; Python code is known as such."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.launch.entrypoints import make_entrypoint
from holdfast.process.spec import Entrypoint, Function, Module, Program, Script, StartMethod

PYTHON = sys.executable


def simple_rank_scale() -> int:
    return 10


@pytest.mark.parametrize(
    ("args", "made"),
    [
        (["train.py"], Script("train.py")),
        (["-u", "a/train.py", "-x", "1"], Script("a/train.py", ("-x", "1"))),
        (["-m", "pkg.train", "-m", "x"], Module("pkg.train", ("-m", "x"))),
        (["-u", "-m", "pkg"], Module("pkg")),
        (["-c", "pass"], Program(PYTHON, ("-c", "pass"))),
        (["-u", "-O", "train.py"], Program(PYTHON, ("-u", "-O", "train.py"))),
        (["-u", "-m"], Program(PYTHON, ("-u", "-m"))),
        (["-"], Program(PYTHON, ("-",))),
        ([""], Program(PYTHON, ("",))),
        ([], Program(PYTHON)),
    ],
)
def test_commands_of_this_interpreter(args: list[str], made: Entrypoint) -> None:
    assert make_entrypoint(PYTHON, args) == made


def test_the_interpreter_by_its_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("python", "python3"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(os.path.realpath(PYTHON))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python3"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert make_entrypoint("python", ["t.py"]) == Script("t.py")
    assert make_entrypoint(str(tmp_path / "bin" / "python"), ["t.py"]) == Script("t.py")
    # The same file in another folder is another virtual environment.
    other = os.path.realpath(PYTHON)
    assert make_entrypoint(other, ["t.py"]) == Program(other, ("t.py",))


@pytest.mark.parametrize("command", ["/bin/sh", "no-such-program", "a/script.sh"])
def test_other_commands_are_programs(command: str) -> None:
    assert make_entrypoint(command, ["-u", "x.py"]) == Program(command, ("-u", "x.py"))


def test_functions() -> None:
    made = make_entrypoint(simple_rank_scale, [1, None], "fork")
    assert made == Function(simple_rank_scale, (1, None), StartMethod.FORK)


@pytest.mark.parametrize(
    ("entrypoint", "args", "why"),
    [
        (None, [], "entry point None: must be a function or a command"),
        ("", [], "entry point '': must be a function or a command"),
        (b"sh", [], "entry point b'sh': must be a function or a command"),
        ("sh", [1], "argument 1: a command takes text without NUL characters"),
        ("sh", ["a\0b"], "argument 'a\\x00b': a command takes text without NUL characters"),
        ("s\0h", [], "argument 's\\x00h': a command takes text without NUL characters"),
    ],
)
def test_wrong_ones(entrypoint: Any, args: list[Any], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_entrypoint(entrypoint, args)
    assert str(caught.value) == why


def test_keyword_arguments_are_for_functions() -> None:
    made = make_entrypoint(simple_rank_scale, [1], kwargs={"scale": 2})
    assert made == Function(simple_rank_scale, (1,), kwargs={"scale": 2})
    with pytest.raises(UsageError) as caught:
        make_entrypoint("sh", ["-c"], kwargs={"scale": 2})
    assert str(caught.value) == (
        "command 'sh': keyword argument 'scale' is not allowed; a command takes words only"
    )
