"""What a process has used and written."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.process.outcome.usage import cpu_seconds, written_bytes
from tests.waiting import until

NO_PROCESS = 1 << 30


def test_what_this_process_used_and_wrote_grows(tmp_path: Path) -> None:
    before = (cpu_seconds(os.getpid()), written_bytes(os.getpid()))
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    until(lambda: cpu_seconds(os.getpid()) > before[0])  # the kernel counts now and then
    assert written_bytes(os.getpid()) >= before[1] + 100_000


def test_a_process_that_is_gone_has_used_nothing() -> None:
    assert (cpu_seconds(NO_PROCESS), written_bytes(NO_PROCESS)) == (0.0, 0)
