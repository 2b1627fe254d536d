"""The docstring of the exit codes lists them all."""

from __future__ import annotations

import re

from holdfast.cli import exits
from holdfast.errors import CODES, SAME_FAILURE


def test_the_docstring_lists_every_code() -> None:
    listed = {int(code) for code in re.findall(r"^    (\d+) ", exits.__doc__ or "", re.MULTILINE)}
    named = {exits.MISSING, exits.BUG, exits.NO_OUTPUT, exits.INTERRUPTED}
    assert listed == {0, *named, SAME_FAILURE, *(code for _, code in CODES)}
