"""From a configuration to what this node's agent is to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.job import Job
from holdfast.agent.rules import RestartBackoff, RestartRules
from holdfast.env import Environment, SecretText
from holdfast.errors import UsageError
from holdfast.launch.config import LaunchConfig
from holdfast.launch.node_job import make_job
from holdfast.process.spec import Script


def job(folder: Path, environment: Environment | None = None, **fields: Any) -> Job:
    config = LaunchConfig(1, 1, 2, **fields)
    told = environment or Environment()
    return make_job(config, Script("x.py"), "job", told, host="a", folder=folder)


def test_rules_and_pauses_reach_the_agent(tmp_path: Path) -> None:
    found = job(
        tmp_path,
        restart_on=("oom", "1"),
        no_restart_on=("2",),
        max_same_failures=3,
        restart_backoff=2.0,
        restart_window_s=60.0,
    )
    assert found.terms.rules == RestartRules(only=("oom", "1"), never=("2",), same_max=3)
    assert found.terms.backoff == RestartBackoff(2.0, 60.0)
    assert found.terms.run_id == "job"
    assert found.alike == (
        "1:1 nodes, 3 restarts in 60 s, only after oom 1, not after 2, 3 same failures, "
        "pauses of 2 to 60 s"
    )
    assert job(tmp_path).alike == "1:1 nodes, 3 restarts"


def test_a_secret_is_in_a_private_file(tmp_path: Path) -> None:
    found = job(tmp_path, Environment(secret=SecretText("a-secret-of-the-tests")))
    assert found.secret_file == tmp_path / "secret"
    assert found.secret_file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="no such file"):
        job(tmp_path, secret_file=tmp_path / "none")


def test_timers_are_announced_in_the_private_folder(tmp_path: Path) -> None:
    assert job(tmp_path).timer_file is None
    assert job(tmp_path, Environment(file_timer=True)).timer_file == tmp_path / "timers"
