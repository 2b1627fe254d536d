"""What `page` refuses; tests/e2e/test_page.py has the rest."""

from __future__ import annotations

import pytest

from tests.unit.cli.conftest import Run


@pytest.mark.parametrize("value", ["x", "70000", "host:", "a:b:c"])
def test_an_address_that_is_none(run: Run, value: str) -> None:
    done = run("page", "--listen", value)
    assert (done.code, done.out) == (2, "")
    assert f"argument --listen: {value!r}: must be a port of loopback from 0" in done.err
    assert done.err.count("\n") == 1


def test_a_job_that_is_not_there(run: Run) -> None:
    line = "holdfast: job 'x': no job of this user runs on this machine\n"
    assert run("page", "x") == (2, "", line)
