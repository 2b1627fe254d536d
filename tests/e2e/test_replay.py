"""Real jobs fail, and their reports are replayed: on one node, on two, and by other code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOLDFAST = [sys.executable, "-m", "holdfast"]
LIMIT_S = 200

# A worker with a secret in its environment, which its traceback does not show.
TRAIN = """\
import os, sys
password = os.environ["PASSWORD"]
if os.environ["RANK"] == sys.argv[1]:
    raise RuntimeError("a mistake")
import signal
signal.pause()
"""

# A change of the code that decides: failures are not published.
CHANGED = """\
import sys
from holdfast.agent.machine import AgentMachine
from holdfast.cli.main import main
AgentMachine._publish = lambda self, **_: None
sys.exit(main())
"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    kept = ("PATH", "PYTHONDONTWRITEBYTECODE", "TMPDIR")
    clean = {name: os.environ[name] for name in kept if name in os.environ}
    (tmp_path / "train.py").write_text(TRAIN)
    secrets = {"HOLDFAST_SECRET": "sesame-of-the-job", "PASSWORD": "sesame-of-the-worker"}
    return {**clean, **secrets, "HOME": str(home), "OMP_NUM_THREADS": "1"}


def started(variables: dict[str, str], *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, out, err


def replay(variables: dict[str, str], report: Path, *python: str) -> tuple[int, str, str]:
    command = [*python, "replay"] if python else [*HOLDFAST, "replay"]
    return ended(started(variables, *command, str(report)))


def test_a_job_fails_and_its_report_tells_how(variables: dict[str, str], tmp_path: Path) -> None:
    report, script = tmp_path / "report.json", str(tmp_path / "train.py")
    flags = ("--nproc-per-node=2", "--max-restarts=1", "--report", str(report))
    code, _, err = ended(started(variables, *HOLDFAST, "run", *flags, script, "1"))
    assert code == 1, err
    text = report.read_text()
    assert "sesame" not in text  # neither the job's secret nor a worker's environment
    assert len(text) < 200_000

    code, out, err = replay(variables, report)
    assert (code, err) == (0, ""), out
    agent, node = out.split("rendezvous: ", 1)
    assert agent.count("counts the failure") == 2
    assert "restarting" in agent
    assert "giving up" in agent
    assert agent.endswith("agent: every decision is the recorded one\n")
    assert "2 complete" in node
    assert node.endswith("rendezvous: every decision is the recorded one\n")

    code, out, err = replay(variables, report, sys.executable, "-c", CHANGED)
    assert (code, err) == (1, ""), out
    assert "agent: step 3 of " in out
    assert "differs; recorded was:" in out
    assert out.endswith("rendezvous: every decision is the recorded one\n")


def test_each_node_of_a_job_tells_its_own_part(variables: dict[str, str], tmp_path: Path) -> None:
    script, store = str(tmp_path / "train.py"), str(tmp_path / "store")
    meeting = ("--nnodes=2", "--rdzv-id=job", "--rdzv-backend=file", f"--rdzv-endpoint={store}")
    logs = [tmp_path / "a", tmp_path / "b"]
    nodes = [
        started(variables, *HOLDFAST, "run", *meeting, f"--log-dir={folder}", script, "1")
        for folder in logs
    ]
    codes = [ended(node) for node in nodes]
    assert [code for code, _, _ in codes] == [1, 1], codes
    stories = []
    for folder in logs:
        [report] = folder.glob("*/report.json")  # where nothing else was asked for
        code, out, err = replay(variables, report)
        assert (code, err) == (0, ""), out
        found: dict[str, Any] = json.loads(report.read_text())
        assert [machine["machine"] for machine in found["machines"]] == ["agent", "rendezvous"]
        stories.append(out)
    counted = ["counts the failure" in story for story in stories]
    heard = ["tells its failures: 1" in story for story in stories]
    assert sorted(counted) == sorted(heard) == [False, True]
    assert counted != heard
