"""Orphans are reaped where the agent is process 1, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.process.stop import orphans
from holdfast.process.stop.handle import open_process

NEW_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def ended(pid: int) -> None:
    """Wait for the end of a child, and leave it there."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_another_process_than_the_first_reaps_nobody() -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    ended(child.pid)
    orphans.reap_orphans()
    assert child.wait() == 0


def test_what_is_ours_or_of_our_session_is_left_to_who_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orphans, "_INIT", os.getpid())
    ours = open_process(["sh", "-c", "exit 3"], {}, None, None)
    neighbour = subprocess.Popen(["sh", "-c", "exit 4"])
    stranger = subprocess.Popen(["sh", "-c", "exit 5"], start_new_session=True)
    for pid in (ours.pid, neighbour.pid, stranger.pid):
        ended(pid)
    orphans.reap_orphans()
    exit_ = ours.reap()
    assert exit_ is not None
    assert (exit_.code, neighbour.wait()) == (3, 4)
    assert stranger.wait() == 0  # nobody knows any more how it ended
    ours.close()


WORKER = """
import os, subprocess, sys
zombies = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        stat = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    except OSError:
        continue
    zombies += stat[0] == "Z" and stat[1] == "1"
os.write(1, b"%d\\n" % zombies)
subprocess.Popen(["true"])
subprocess.run(["sh", "-c", "setsid sleep 1000 & setsid true &"])
sys.exit(3)
"""


def test_process_1_keeps_no_zombies_over_restarts(tmp_path: Path) -> None:
    if subprocess.run([*NEW_NAMESPACE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here: that needs root and unshare")
    script = str(tmp_path / "worker.py")
    with open(script, "w") as file:
        file.write(WORKER)
    run = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node=1", "--max-restarts=3"]
    done = subprocess.run(
        [*NEW_NAMESPACE, *run, script], check=False, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 3, done.stderr
    found = [int(line) for line in done.stdout.split()]
    assert len(found) == 4
    assert max(found) <= 1, "zombies of the attempts before are there"  # one has just ended
