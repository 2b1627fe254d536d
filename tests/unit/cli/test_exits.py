"""Every error has an exit code, and the docstring lists them all."""

from __future__ import annotations

import re

import pytest

from holdfast.cli import exits
from holdfast.errors import (
    HoldfastError,
    InternalError,
    LeaseLost,
    PeerViolation,
    Refused,
    Signalled,
    StoreUnavailable,
    TimeoutExpired,
    Unavailable,
    UsageError,
    WorkersFailed,
    WorkersStuck,
)
from holdfast.process.failure import Failure
from holdfast.process.spec import Exit

FAILURE = Failure(
    rank=0, local_rank=0, role="", host="h", pid=7, exit=Exit(-11), at=1.5, message="m"
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("m"), 2),
        (Unavailable("m"), 69),
        (StoreUnavailable("m"), 69),
        (LeaseLost("m"), 69),
        (InternalError("m"), 70),
        (HoldfastError("m"), 70),
        (TimeoutExpired("m"), 75),
        (PeerViolation("m"), 76),
        (Refused("m"), 77),
        (WorkersStuck("m", pids=(7,)), 69),
        (WorkersFailed("m", failures=(FAILURE,)), 139),
        (Signalled("m", signal=15), 143),
    ],
)
def test_codes_of_errors(error: HoldfastError, code: int) -> None:
    assert exits.exit_code(error) == code


def test_the_docstring_lists_every_code() -> None:
    listed = {int(code) for code in re.findall(r"^    (\d+) ", exits.__doc__ or "", re.MULTILINE)}
    named = {exits.MISSING, exits.BUG, exits.NO_OUTPUT, exits.INTERRUPTED}
    assert listed == {0, *named, *(code for _, code in exits._CODES)}
