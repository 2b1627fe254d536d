"""The programs of examples/torch print the same numbers with torch and with holdfast.

torch's RPC agent warns when it is told of a network interface that is not there, and goes on. So
the warnings count torch's agents: as many as there are workers, or with holdfast none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

PROGRAMS = Path(__file__).parents[3] / "examples" / "torch"
PYTHON = (sys.executable,)
FACADE = (*PYTHON, "-m", "holdfast.torch_compat")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
HOLDFAST_RUN = (*PYTHON, "-m", "holdfast", "run", "--standalone")

NOWHERE = "no-such-interface"
WORKERS = 3
LIMIT_S = 600.0  # ten seconds are usual
END_WITHIN_S = 30.0


class Ran(NamedTuple):
    said: list[str]
    """The lines on its standard output."""
    torchs_agents: int


def ran(folder: Path, *command: str | Path, **variables: str) -> Ran:
    """Run a program to its good end, as it is without these tests; nothing of it outlives this."""
    folder.mkdir()
    ours = ("HOLDFAST_", "PET_", "PYTHONPATH", "TORCH")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONUTF8": "1",
        "TMPDIR": str(folder),
        "TP_SOCKET_IFNAME": NOWHERE,
        **variables,
    }
    out, err = folder / "out", folder / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            command, env=environment, stdout=stdout, stderr=stderr, start_new_session=True
        )
    try:
        process.wait(LIMIT_S)
    finally:
        process.terminate()  # a launcher ends its workers, which are in groups of their own
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_WITHIN_S)
        with suppress(ProcessLookupError):  # if there is nothing left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    trouble = err.read_text()
    assert process.returncode == 0, trouble
    return Ran(out.read_text().splitlines(), trouble.count(f"for interface {NOWHERE}"))


@pytest.mark.timeout(2 * LIMIT_S + 100)
@pytest.mark.parametrize(
    ("program", "launcher"),
    [
        ("parameter_server.py", ()),
        ("actor_learner.py", ()),
        ("split_model.py", (*TORCHRUN, f"--nproc-per-node={WORKERS}")),
    ],
    ids=["parameter server", "actor-learner", "split model"],
)
def test_calls(program: str, launcher: tuple[str, ...], tmp_path: Path) -> None:
    theirs = ran(tmp_path / "theirs", *PYTHON, *launcher, PROGRAMS / program)
    ours = ran(tmp_path / "ours", *FACADE, *launcher, PROGRAMS / program)
    assert (theirs.torchs_agents, ours.torchs_agents) == (WORKERS, 0)
    assert len(theirs.said) == 1
    assert ours.said == theirs.said


def until_the_result(said: list[str]) -> list[str]:
    """Return what a training said until its result.

    A thread of gloo aborts a process that ends now and then ("terminate called without an active
    exception"), with torchrun too; the job then begins once more after the last step.
    """
    ends = [number for number, line in enumerate(said, 1) if line.startswith("after ")]
    return said[: ends[0]] if ends else said


@pytest.mark.timeout(3 * LIMIT_S + 100)
def test_training_that_crashes_and_goes_on(tmp_path: Path) -> None:
    """Its end is that of a run without a crash.

    torchrun keeps the store of its workers over a restart, unless told otherwise, and the new ones
    may read in it where the old ones were, and fail.
    """
    flags = ("--nproc-per-node=2", "--max-restarts=2", PROGRAMS / "train_ddp.py")
    apart = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    crash = ("--crash-at", "17")
    theirs = ran(tmp_path / "theirs", *PYTHON, *TORCHRUN, *flags, tmp_path / "1", *crash, **apart)
    ours = ran(tmp_path / "ours", *HOLDFAST_RUN, *flags, tmp_path / "2", *crash)
    whole = ran(tmp_path / "whole", *HOLDFAST_RUN, *flags, tmp_path / "3")
    begun, result = until_the_result(whole.said)
    assert begun == "attempt 0 begins after step 0"
    crashed = [begun, "attempt 1 begins after step 15", result]
    assert until_the_result(theirs.said) == until_the_result(ours.said) == crashed
