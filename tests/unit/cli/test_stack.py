"""What `stack` refuses; tests/e2e/test_stack_command.py has the rest."""

from __future__ import annotations

from tests.unit.cli.conftest import Run


def test_ranks_that_are_none(run: Run) -> None:
    done = run("stack", "--rank", "x")
    assert (done.code, done.out) == (2, "")
    assert "argument --rank: ranks 'x': must be like 0,3,5-7" in done.err


def test_a_job_that_is_not_there(run: Run) -> None:
    line = "holdfast: job 'x': no job of this user runs on this machine\n"
    assert run("stack", "x") == (2, "", line)
