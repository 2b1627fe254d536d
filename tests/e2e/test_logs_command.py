"""`holdfast logs` against real jobs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.steered import HOLDFAST, LIMIT_S, SteeredJobs, steered_jobs

SCRIPT = """\
import os, signal, sys
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"attempt {attempt} of {rank}", flush=True)
print(f"loss {rank}", file=sys.stderr, flush=True)
if attempt == "0" and rank == "1":
    raise ValueError("a mistake")
signal.pause()
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[SteeredJobs]:
    with steered_jobs(tmp_path) as made:
        yield made


def wrote(jobs: SteeredJobs, count: int, *argv: str) -> list[str]:
    """Wait until the logs have so many lines; return them, sorted."""
    with subprocess.Popen(
        [*HOLDFAST, "logs", "-f", *argv], env=jobs.variables, stdout=subprocess.PIPE, text=True
    ) as reader:
        try:
            assert reader.stdout is not None
            return sorted(reader.stdout.readline().rstrip("\n") for _ in range(count))
        finally:
            reader.kill()


def test_the_logs_of_ranks_and_attempts(jobs: SteeredJobs, tmp_path: Path) -> None:
    flags = ["--nproc-per-node=2", "--max-restarts=1", "-r", "3", "--log-dir", str(tmp_path / "l")]
    jobs.start("--rdzv-id=j", *flags, jobs.script(SCRIPT))
    jobs.running("j", round_=2)
    now = ["rank 0 err: loss 0", "rank 0: attempt 1 of 0", "rank 1 err: loss 1"]
    assert wrote(jobs, 4, "j") == [*now, "rank 1: attempt 1 of 1"]
    done = jobs.call("logs", "--rank", "0-1", "--grep", "loss")
    assert done.stdout == "rank 0 err: loss 0\nrank 1 err: loss 1\n"
    first = jobs.call("logs", "--attempt", "0", "--rank", "1").stdout
    assert first.startswith("rank 1: attempt 0 of 1\nrank 1 err: loss 1\n")
    assert first.endswith("rank 1 err: ValueError: a mistake\n")
    for words, why in (
        (["--attempt", "2"], "attempt 2: not of this job; here are 0 to 1"),
        (["--rank", "1,5"], "rank 5: not on this machine; here are ranks 0-1"),
    ):
        refused = jobs.call("logs", *words)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == f"holdfast: {why}\n"


def test_following_goes_on_with_the_next_attempt_and_ends_with_the_job(
    jobs: SteeredJobs, tmp_path: Path
) -> None:
    script = jobs.script(
        SCRIPT.replace(
            'if attempt == "0" and rank == "1":\n',
            """\
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
if attempt == "9":
""",
        )
    )
    jobs.start("--max-restarts=1", "--tee=3", "--log-dir", str(tmp_path / "l"), script)
    (agent,) = jobs.running()["agents"]
    with subprocess.Popen(
        [*HOLDFAST, "logs", "--follow"], env=jobs.variables, stdout=subprocess.PIPE, text=True
    ) as reader:
        try:
            assert reader.stdout is not None
            lines = {reader.stdout.readline(), reader.stdout.readline()}
            assert lines == {"rank 0: attempt 0 of 0\n", "rank 0 err: loss 0\n"}
            subprocess.run(["kill", "-USR1", str(agent["workers"][0]["pid"])], check=True)
            lines = {reader.stdout.readline(), reader.stdout.readline()}
            assert lines == {"rank 0: attempt 1 of 0\n", "rank 0 err: loss 0\n"}
            jobs.running(round_=2)
            assert jobs.call("stop").returncode == 0
            rest, _ = reader.communicate(timeout=LIMIT_S)
        finally:
            reader.kill()
    assert (reader.returncode, rest) == (0, "")


@pytest.mark.parametrize("flags", [[], ["--log-dir=logs"]], ids=["no folder", "a folder"])
def test_a_job_that_keeps_no_output_says_which_flag_it_lacks(
    jobs: SteeredJobs, tmp_path: Path, flags: list[str]
) -> None:
    wanted = [flag.replace("=", f"={tmp_path}/") for flag in flags]
    jobs.start(*wanted, "--no-python", "sleep", "1000")
    jobs.running()
    done = jobs.call("logs")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "holdfast: the output of this job is kept in no file: start the job with --tee 3 or "
        "--redirects 3, and --log-dir DIR to choose the folder\n"
    )
