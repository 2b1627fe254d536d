"""What type checkers tell users of holdfast, by a program that holds right lines and mistakes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast

PROGRAM = Path(__file__).with_name("user_program.py")
SOURCE = str(Path(holdfast.__file__).parents[1])
_REMARK = re.compile(r"  # (?P<remark>mistake|\w+(\[.*\])?)$")
_MODULES = re.compile(r"\b(?:\w+\.)+(?=\w)")  # mypy shows the module of a class, pyright does not


def expected() -> tuple[dict[int, str], set[int]]:
    """Return which lines reveal which type, and which lines hold a mistake."""
    types: dict[int, str] = {}
    mistakes: set[int] = set()
    for number, line in enumerate(PROGRAM.read_text().splitlines(), 1):
        remark = _REMARK.search(line)
        if remark is None:
            continue
        if remark["remark"] == "mistake":
            mistakes.add(number)
        else:
            types[number] = remark["remark"]
    return types, mistakes


def read_by_mypy(folder: Path) -> tuple[dict[int, str], set[int]]:
    """Return what mypy says: types by line, and lines with an error."""
    command = ["mypy", "--strict", "--config-file=", f"--cache-dir={folder}", "--output=json"]
    done = subprocess.run(
        [sys.executable, "-m", *command, str(PROGRAM)],
        env={"MYPYPATH": SOURCE},
        capture_output=True,
        text=True,
        check=False,
    )
    types: dict[int, str] = {}
    mistakes: set[int] = set()
    for line in done.stdout.splitlines():
        told = json.loads(line)
        assert told["file"].endswith(PROGRAM.name), told
        revealed = re.search(r'Revealed type is "(.*)"', told["message"])
        if revealed:
            types[told["line"]] = _MODULES.sub("", revealed[1])
        elif told["severity"] == "error":
            mistakes.add(told["line"])
    assert types, done.stderr
    return types, mistakes


def read_by_pyright(folder: Path) -> tuple[dict[int, str], set[int]]:
    """Return what pyright says, in its standard mode: types by line, and lines with an error."""
    settings = folder / "pyrightconfig.json"
    modes = {"typeCheckingMode": "standard", "extraPaths": [SOURCE], "include": [str(PROGRAM)]}
    settings.write_text(json.dumps(modes))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(settings)],
        capture_output=True,
        text=True,
        check=False,
    )
    types: dict[int, str] = {}
    mistakes: set[int] = set()
    for told in json.loads(done.stdout)["generalDiagnostics"]:
        line = told["range"]["start"]["line"] + 1
        revealed = re.search(r'^Type of ".*" is "(.*)"$', told["message"])
        if revealed:
            types[line] = revealed[1]
        elif told["severity"] == "error":
            mistakes.add(line)
    return types, mistakes


@pytest.mark.parametrize("read", [read_by_mypy, read_by_pyright])
def test_users_see_the_types_of_results_and_their_mistakes(
    read: Callable[[Path], tuple[dict[int, str], set[int]]], tmp_path: Path
) -> None:
    types, mistakes = read(tmp_path)
    assert (types, mistakes) == expected()
