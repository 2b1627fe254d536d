"""Signals that are ignored when a process starts are heeded."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STARTED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD)
IGNORING = """
import os, signal, sys
for number in map(int, sys.argv[2].split()):
    signal.signal(number, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
SAYING = "; print(*[n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN])"


def still_ignored(program: str) -> set[int]:
    """Start a program where signals are ignored; return those that it ignores at last."""
    numbers = " ".join(str(int(one)) for one in STARTED)
    command = [sys.executable, "-c", IGNORING, f"import signal; {program}{SAYING}", numbers]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
    return {int(word) for word in (found.stdout + found.stderr).split()}


def test_a_process_inherits_what_is_ignored() -> None:
    assert still_ignored("pass") >= set(STARTED)


AGENT = (
    "import tests.chaos.agent as it; it._run = it.Stage.report = lambda *a, **b: 0; "
    "it.main({'reconnect_within_s': 1})"
)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("import tests.inherited_signals as it; it.restore_signals()", id="called"),
        pytest.param("import tests.conftest", id="nohup_make_test"),
        pytest.param(AGENT, id="nohup_make_chaos"),
    ],
)
def test_what_was_ignored_is_heeded(program: str) -> None:
    assert still_ignored(program) == {signal.SIGPIPE, signal.SIGXFSZ}
