"""Restart rules in real jobs: by cause, and when the same failure comes again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.rendezvous.port import HeldPort
from tests.e2e.steered import LIMIT_S, SteeredJobs, steered_jobs

FAIL = """\
import os
if os.environ["RANK"] == "0":
    raise ValueError("attempt " + os.environ["TORCHELASTIC_RESTART_COUNT"])
import signal
signal.pause()
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[SteeredJobs]:
    with steered_jobs(tmp_path) as made:
        yield made


def test_a_cause_that_no_restart_cures_ends_the_job(jobs: SteeredJobs) -> None:
    done = jobs.call("run", "--max-restarts=3", "--no-restart-on=ValueError", jobs.script(FAIL))
    assert done.returncode == 1
    assert "no restart after ValueError: giving up" in done.stderr
    assert "attempt 0" in done.stderr
    assert "attempt 1" not in done.stderr


def test_the_same_failure_again_ends_the_job_on_every_node_with_its_code(
    jobs: SteeredJobs, request: pytest.FixtureRequest
) -> None:
    held = HeldPort("127.0.0.1")
    request.addfinalizer(held.close)
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{held.port}", "--rdzv-id=job"]
    rules = ["--max-restarts=5", "--max-same-failures=2", "--restart-backoff=0.1s"]
    script = jobs.script(FAIL)
    flags = [*meet, "--nnodes=2", *rules]
    pair = [jobs.start(*flags, f"--rdzv-conf=is_host={host}", script) for host in ("true", "false")]
    for one in pair:
        _, err = one.communicate(timeout=LIMIT_S)
        assert (one.returncode, "the same failure 2 times in a row" in err) == (80, True), err
        assert "1 restart (rank 0: ValueError)" in err
