"""How commands reach jobs, and what they say if an agent does not answer."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from holdfast.cli import job_access
from holdfast.cli.job_access import JobAccess, told
from holdfast.control.client import AgentAnswer
from holdfast.control.folder import open_folder
from holdfast.control.jobs import AgentEntry
from holdfast.control.messages import AskStatus
from holdfast.control.server import ControlServer
from holdfast.errors import Refused, TimeoutExpired, UsageError
from tests.waiting import with_more_time


def entry(number: int, run: str = "a") -> AgentEntry:
    return AgentEntry(
        token=f"t{number}", run=run, host="vm", pid=number, started_at=1.0, endpoint="h:1"
    )


def test_agents_are_found_asked_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(tmp_path, host="vm")
    access = JobAccess(folder)
    with pytest.raises(UsageError, match="no job of this user"):
        access.find(None)
    server = ControlServer(folder, entry(1), lambda request, caller: {"state": "running"})
    server.start()
    try:
        with socket.socket(socket.AF_UNIX) as silent:
            folder.bind(silent, "t2")
            silent.listen()
            folder.write(entry(2))

            def attempt(seconds: float) -> None:
                monkeypatch.setattr(job_access, "ANSWER_WITHIN_S", seconds)
                job, answers = access.find("a")
                assert [agent.pid for agent in job.agents] == [1, 2]
                found, missing = told(answers)
                assert found == [{"state": "running"}]
                assert missing == [
                    "no answer: the agent with process 2 does not answer: is it stopped?"
                ]

            with_more_time(attempt)
        monkeypatch.setattr(job_access, "ANSWER_WITHIN_S", 60.0)
        job, _ = access.find("a")
        assert len(access.ask(job, AskStatus(), 60.0)) == 1
        with pytest.raises(UsageError, match="job 'b': no such job here; there is a"):
            access.find("b")
    finally:
        server.close()


def test_the_folder_is_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert JobAccess().folder.path.is_relative_to(tmp_path / "holdfast" / "jobs")


def test_no_answer_at_all_is_an_error() -> None:
    late = TimeoutExpired("process 1 does not answer")
    with pytest.raises(TimeoutExpired, match="process 1"):
        told([AgentAnswer(entry(1), None, late)])
    with pytest.raises(Refused, match="no"):
        told([AgentAnswer(entry(1), None, Refused("no")), AgentAnswer(entry(2), None, late)])
    with pytest.raises(UsageError, match="has just ended"):
        told([])
