"""What `logs` refuses; tests/e2e/test_logs_command.py has the rest."""

from __future__ import annotations

import pytest

from tests.unit.cli.conftest import Run


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--rank", "x"], "argument --rank: ranks 'x': must be like 0,3,5-7"),
        (["--attempt", "-1"], "argument --attempt: '-1' must be 0, 1, 2 ..."),
        (["--attempt", "last"], "argument --attempt: 'last' must be 0, 1, 2 ..."),
    ],
)
def test_arguments_that_are_wrong(run: Run, words: list[str], why: str) -> None:
    done = run("logs", *words)
    assert (done.code, done.out) == (2, "")
    assert why in done.err


def test_a_job_that_is_not_there(run: Run) -> None:
    line = "holdfast: job 'x': no job of this user runs on this machine\n"
    assert run("logs", "x") == (2, "", line)
