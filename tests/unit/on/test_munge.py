"""MUNGE's programs, here programs that say what MUNGE says; tests/engines has the real ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import Refused, Unavailable
from holdfast.on import munge


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_what_is_sealed_is_opened(programs: Path) -> None:
    program(programs, "munge", '[ "$1" = "--restrict-uid=$(id -u)" ] && echo "MUNGE:$(cat):"')
    program(programs, "unmunge", r'printf "UID:   x (%s)\n\n" $(id -u); sed "s/MUNGE:\(.*\):/\1/"')
    assert munge.is_there()
    assert munge.seal(b"text") == b"MUNGE:text:"
    assert munge.open_credential(b"MUNGE:text:") == b"text"


@pytest.mark.parametrize(
    "script",
    [
        f'printf "UID: y ({os.geteuid() + 1})\\n\\ntext"',
        'printf "\\n\\ntext"',
        "echo no such credential >&2; exit 15",
    ],
)
def test_what_another_user_has_sealed_is_refused(programs: Path, script: str) -> None:
    program(programs, "unmunge", script)
    with pytest.raises(Refused):
        munge.open_credential(b"x")


def test_programs_that_are_missing_or_hang(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs))
    assert not munge.is_there()
    with pytest.raises(Unavailable, match="program 'munge': No such file"):
        munge.seal(b"x")
    program(programs, "munge", "read x < /dev/tty0 || /bin/sleep 1000")
    monkeypatch.setattr(munge, "_WITHIN_S", 0.01)
    with pytest.raises(Unavailable, match="munge did not answer"):
        munge.seal(b"x")
