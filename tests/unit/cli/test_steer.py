"""What `ps`, `status`, `stop` and `events` refuse; tests/e2e/test_steering.py has the rest."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.conftest import Run


def test_no_jobs(run: Run) -> None:
    done = run("ps")
    assert (done.code, done.err) == (0, "")
    assert done.out == "JOB  STATE  NODES  WORKERS  RESTARTS  AGE  REASON\n"
    assert json.loads(run("ps", "--json").out) == {"jobs": [], "no_answer": []}


@pytest.mark.parametrize("command", ["status", "stop", "events"])
def test_a_job_that_is_not_there(run: Run, command: str) -> None:
    line = "holdfast: job 'x': no job of this user runs on this machine\n"
    assert run(command, "x") == (2, "", line)
    assert run(command).err == "holdfast: a job: no job of this user runs on this machine\n"


@pytest.mark.parametrize("grace", ["-1", "soon", "nan", "inf"])
def test_a_grace_that_is_none(run: Run, grace: str) -> None:
    done = run("stop", f"--grace={grace}")
    assert (done.code, done.out) == (2, "")
    assert f"argument --grace: {grace!r} must be 0 to 1e+06 seconds" in done.err


def test_a_user_without_a_home(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    done = run("ps")
    assert (done.code, done.out) == (2, "")
    assert "set HOME or XDG_STATE_HOME" in done.err
