"""The last line of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.machine import State
from holdfast.agent.outcome import Ending
from holdfast.agent.restarts import Restarts
from holdfast.agent.status import AgentStatus
from holdfast.cli.run_end import last_line


@pytest.mark.parametrize(
    ("ending", "line"),
    [
        (Ending.SUCCEEDED, "succeeded in 6.0 s, 1 restart (rank 3: ValueError), logs in /logs"),
        (Ending.FAILED, "failed after 6.0 s, 1 restart (rank 3: ValueError), logs in /logs"),
        (
            Ending.SIGNALLED,
            "ended after 6.0 s, 1 restart (rank 3: ValueError), logs in /logs: the reason",
        ),
        (
            Ending.STOPPED,
            "ended after 6.0 s, 1 restart (rank 3: ValueError), logs in /logs: the reason",
        ),
        (
            Ending.BROKEN,
            "ended after 6.0 s, 1 restart (rank 3: ValueError), logs in /logs: the reason",
        ),
        (
            Ending.NOT_NEEDED,
            "not needed, after 6.0 s, 1 restart (rank 3: ValueError), logs in /logs: the reason",
        ),
    ],
)
def test_each_ending(ending: Ending, line: str) -> None:
    restarts = Restarts().plus("rank 3: ValueError")
    status = AgentStatus(
        State.ENDED, "the reason", None, None, 0.0, restarts=restarts, logs=Path("/logs")
    )
    assert last_line(status, ending, 6.0) == line


def test_logs_that_are_not_kept_are_not_named() -> None:
    status = AgentStatus(State.ENDED, "", None, None, 0.0)
    assert last_line(status, Ending.SUCCEEDED, 0.5) == "succeeded in 0.5 s, no restart"
