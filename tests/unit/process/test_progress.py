"""The step of a worker: told by it, read by its agent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import env
from holdfast.errors import UsageError
from holdfast.process import progress
from holdfast.process.progress import read_step


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_cells", None)


def test_a_step_is_read_from_the_workers_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "progress"
    monkeypatch.setenv(env.PROGRESS, str(path))
    assert read_step(path) == -1
    for step in (0, 7, 1 << 63):
        holdfast.progress(step=step)
        assert read_step(path) == step
    assert path.stat().st_mode & 0o777 == 0o600


def test_another_process_tells_its_own(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    told = {**os.environ, env.PROGRESS: str(path)}
    code = "import holdfast; holdfast.progress(step=41); holdfast.progress(42)"
    subprocess.run([sys.executable, "-c", code], env=told, check=True)
    assert read_step(path) == 42


@pytest.mark.parametrize("where", ["", "no/such/folder/progress", "."])
def test_without_an_agent_nothing_happens(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(env.PROGRESS, where and str(tmp_path / where))
    holdfast.progress(step=3)
    holdfast.progress(step=4)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", [-1, 1 << 64, 1.5, "1", None])
def test_a_wrong_step_is_refused_at_every_call(step: object) -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match=r"must be a whole number from 0 to 2\*\*64 - 1"):
            holdfast.progress(step=step)  # type: ignore[arg-type]
        holdfast.progress(step=1)


def test_what_lies_there_instead_of_a_workers_file(tmp_path: Path) -> None:
    assert read_step(tmp_path) == -1
    (tmp_path / "short").write_bytes(b"123")
    assert read_step(tmp_path / "short") == -1
    (tmp_path / "link").symlink_to(tmp_path / "short")
    assert read_step(tmp_path / "link") == -1
