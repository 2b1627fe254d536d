"""What an agent serves beside its work; tests/e2e asks real agents."""

from __future__ import annotations

import http.client
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast import env
from holdfast.control.folder import open_folder
from holdfast.errors import UsageError
from holdfast.launch.config import LaunchConfig
from holdfast.launch.serving import serve_commands, serve_metrics
from holdfast.launch.steering import Steering
from holdfast.observe.job_figures import JobFigures
from holdfast.observe.journal import Journal

WAIT_S = 60.0


def make(**changes: object) -> tuple[LaunchConfig, Steering, Journal, JobFigures]:
    config = LaunchConfig(1, 1, 1, rdzv_endpoint="localhost:0", **changes)  # type: ignore[arg-type]
    journal, figures = Journal(), JobFigures("j", "vm")
    steering = Steering(config, "j", "train.py", "vm", journal=journal, figures=figures)
    return config, steering, journal, figures


def test_commands_find_the_agent_while_it_is_served(tmp_path: Path) -> None:
    config, steering, journal, _ = make()
    environment = env.read({"XDG_STATE_HOME": str(tmp_path)})
    with ExitStack() as stack:
        serve_commands(stack, steering, config, environment, journal)
        folder = open_folder(environment.state_dir, host="vm")
        (entry,) = folder.entries()
        assert (entry.run, entry.endpoint) == ("j", "")
    assert folder.entries() == []
    assert journal.after(0) == ([], True)


def test_a_user_without_a_home_has_a_job_all_the_same() -> None:
    config, steering, journal, _ = make()
    with ExitStack() as stack:
        serve_commands(stack, steering, config, env.read({}), journal)


def test_metrics_are_served_if_they_are_asked_for() -> None:
    config, steering, _, figures = make(metrics_port="0")
    with ExitStack() as stack:
        serve_metrics(stack, steering, config, figures)
        where = steering.status()["metrics"]
        assert where.startswith("http://127.0.0.1:")
        host = where.removeprefix("http://").removesuffix("/metrics")
        with closing(http.client.HTTPConnection(host, timeout=WAIT_S)) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        assert 'holdfast_agent_state{job="j",node="vm",state="joining"} 1.0\n' in text
        other, *_ = make(metrics_port=host)
        with pytest.raises(UsageError, match=f"metrics port {host}: cannot listen on"):
            serve_metrics(stack, steering, other, figures)


def test_the_page_is_served_with_the_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, steering, journal, _ = make(page="0")
    environment = env.read({"XDG_STATE_HOME": str(tmp_path)})
    with ExitStack() as stack:
        serve_commands(stack, steering, config, environment, journal)
        link = steering.status()["page"]
        assert caplog.messages == [f"the page of job j is at {link}"]
        host, _, path = link.removeprefix("http://").partition("/")
        with closing(http.client.HTTPConnection(host, timeout=WAIT_S)) as connection:
            connection.request("GET", f"/{path}")
            assert b"<title>holdfast</title>" in connection.getresponse().read()
        other, *_ = make(page=host)
        with pytest.raises(UsageError, match=f"page {host}: cannot listen on"):
            serve_commands(stack, steering, other, environment, journal)


def test_a_page_that_nothing_could_be_shown_on_is_refused() -> None:
    config, steering, journal, _ = make(page="0")
    with ExitStack() as stack, pytest.raises(UsageError, match="needs a folder of the user"):
        serve_commands(stack, steering, config, env.read({}), journal)


def test_without_the_flag_nothing_listens() -> None:
    config, steering, _, figures = make()
    with ExitStack() as stack:
        serve_metrics(stack, steering, config, figures)
        assert steering.status()["metrics"] is None
