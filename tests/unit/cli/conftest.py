"""The command line, called in this process by a user who has never used holdfast."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from holdfast.cli.main import main


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Run: TypeAlias = Callable[..., Done]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and an environment without variables of ours."""
    for name in [*os.environ]:
        if name.startswith("HOLDFAST_") or name == "XDG_STATE_HOME":
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def run(home: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> Done:
        try:
            code = main(argv)
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return call
