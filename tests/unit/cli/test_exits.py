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
    StoreUnavailable,
    TimeoutExpired,
    Unavailable,
    UsageError,
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
    ],
)
def test_codes_of_errors(error: HoldfastError, code: int) -> None:
    assert exits.exit_code(error) == code


def test_the_docstring_lists_every_code() -> None:
    listed = {int(code) for code in re.findall(r"^    (\d+) ", exits.__doc__ or "", re.MULTILINE)}
    named = {exits.MISSING, exits.BUG, exits.NO_OUTPUT, exits.INTERRUPTED}
    assert listed == {0, *named, *(code for _, code in exits._CODES)}
