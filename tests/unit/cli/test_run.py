"""`holdfast run`, as a person uses it: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.errors import RendezvousLost, WorkersFailed
from holdfast.launch import launcher
from holdfast.launch.config import LaunchConfig
from holdfast.process.spec import Entrypoint, Script
from tests.unit.cli.conftest import Run


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith("PET_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return str(path)


def test_a_dry_run_prints_what_would_be_done(run: Run, script: str) -> None:
    code, out, err = run("run", "--dry-run", "--nproc-per-node=3", script, "--dry-run", "-x")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert shown["config"]["nproc_per_node"] == 3
    assert shown["entrypoint"]["args"] == ["--dry-run", "-x"]


def test_warnings_come_first(run: Run, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_X\n", "1")
    code, out, err = run("run", "--dry-run", script)
    assert code == 0
    assert json.loads(out)
    assert err == "holdfast: environment variable PET_X\\n: unknown, and ignored\n"


def test_a_mistake_is_one_line(run: Run, script: str) -> None:
    assert run("run", "--nnodes", "x", script) == (
        2,
        "",
        "holdfast: argument --nnodes: 'x' must be N or MIN:MAX, with 1 <= MIN <= MAX\n",
    )


def test_a_flag_that_is_none(run: Run, script: str) -> None:
    code, out, err = run("run", "--nproc", "4", script)
    assert (code, out) == (2, "")
    assert err == (
        "holdfast run: unrecognized arguments: --nproc; did you mean --nproc-per-node? "
        "(see holdfast run --help)\n"
    )


def test_the_report_of_a_failed_job_is_printed_whole(
    run: Run, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: LaunchConfig, entrypoint: Entrypoint, **options: object) -> None:
        assert config.nproc_per_node == 2
        assert entrypoint == Script(script, ("x",))
        raise WorkersFailed("train.py failed\n\nFirst cause:\n  \x1b[2Jbad")

    monkeypatch.setattr(launcher, "run_job", fail)
    code, out, err = run("run", "--nproc-per-node=2", script, "x")
    assert (code, out) == (1, "")
    assert err == "train.py failed\n\nFirst cause:\n  \\x1b[2Jbad\n"


def test_what_failed_before_the_job_broke_is_printed_before_the_error(
    run: Run, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(config: LaunchConfig, entrypoint: Entrypoint, **options: object) -> None:
        error = RendezvousLost("run x: the store is lost")
        error.add_note("train.py failed\n\nFirst cause:\n  \x1b[2Jbad")
        raise error

    monkeypatch.setattr(launcher, "run_job", lose)
    code, out, err = run("run", script)
    assert (code, out) == (69, "")
    cause = "train.py failed\n\nFirst cause:\n  \\x1b[2Jbad\n"
    assert err == f"{cause}holdfast: run x: the store is lost\n"
