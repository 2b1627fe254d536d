"""Orphans are reaped where the agent inherits them, and nothing else is."""

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


def test_only_process_1_reaps_orphans() -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    ended(child.pid)
    orphans.reap_orphans()
    assert child.wait() == 0


def test_children_and_processes_of_our_session_are_not_reaped_as_orphans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orphans, "_heirs", {os.getpid()})
    ours = open_process(["sh", "-c", "exit 3"], {}, None, None)
    neighbour = subprocess.Popen(["sh", "-c", "exit 4"])
    stranger = subprocess.Popen(["sh", "-c", "exit 5"], start_new_session=True)
    for pid in (ours.pid, neighbour.pid, stranger.pid):
        ended(pid)
    orphans.reap_orphans()
    exit_ = ours.reap()
    assert exit_ is not None
    assert (exit_.code, neighbour.wait()) == (3, 4)
    assert stranger.wait() == 0  # how it ended is no longer known
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


ADOPTS = """
import os, subprocess
from holdfast.process.stop.orphans import adopt_orphans, reap_orphans
assert adopt_orphans()
gate, opener = os.pipe()  # it ends only when it is an orphan: its parent could reap it before
code = f"cat <&{gate} > /dev/null 2>&1 & echo $!"
told = subprocess.run(
    ["sh", "-c", code], capture_output=True, start_new_session=True, pass_fds=(gate,)
)
orphan = int(told.stdout)
os.close(opener)
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
reap_orphans()
try:
    os.kill(orphan, 0)
except ProcessLookupError:
    print("reaped")
if os.fork() == 0:  # a fork of the agent inherits nothing
    stranger = subprocess.Popen(["sh", "-c", "exit 3"], start_new_session=True)
    os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
    reap_orphans()
    os._exit(stranger.wait())
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_process_may_adopt_orphans() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTS], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.stdout, done.stderr) == ("reaped\n3\n", "")
