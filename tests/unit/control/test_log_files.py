"""Which files hold the output of the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.control.log_files import KeptLog, attempts_wanted, log_files


def attempt(number: int, first_rank: int, workers: int = 1) -> dict[str, Any]:
    return {"number": number, "first_rank": first_rank, "workers": workers}


AGENT = {"logs": "/l", "attempts": [attempt(0, 4, 2), attempt(1, 2, 2)]}


def test_the_files_of_the_last_attempt() -> None:
    assert log_files([AGENT], None, None) == [
        KeptLog(1, 2, "", Path("/l/attempt_1/0/stdout.log")),
        KeptLog(1, 2, "err", Path("/l/attempt_1/0/stderr.log")),
        KeptLog(1, 3, "", Path("/l/attempt_1/1/stdout.log")),
        KeptLog(1, 3, "err", Path("/l/attempt_1/1/stderr.log")),
    ]


def test_some_ranks_of_an_earlier_attempt() -> None:
    found = log_files([AGENT, {"logs": None, "attempts": [attempt(0, 0)]}], 0, (5,))
    assert [str(one.path) for one in found] == [
        "/l/attempt_0/1/stdout.log",
        "/l/attempt_0/1/stderr.log",
    ]
    assert log_files([AGENT], 7, None) == []


def test_an_agent_that_has_started_nothing() -> None:
    assert attempts_wanted({}, None) == []
    assert log_files([{"logs": "/l"}], None, None) == []
