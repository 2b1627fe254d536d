"""`holdfast run --warm`: one process imports for the workers of all rounds but the first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.process.workers import await_end

LIMIT_S = 200

SLOW = "import os\nIMPORTED_BY = os.getpid()\n"
SCRIPT = """\
import json, os, sys, slow
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
facts = [restart, int(os.environ["RANK"]), os.getpid(), slow.IMPORTED_BY]
os.write(1, json.dumps(facts).encode() + b"\\n")  # in one piece: others write there, too
if restart < 2:  # no worker fails before both have written
    met = os.path.join(os.path.dirname(__file__), f"met-{restart}")
    os.close(os.open(met, os.O_RDONLY if os.environ["RANK"] == "1" else os.O_WRONLY))
if restart < 2 and os.environ["RANK"] == "1":
    raise RuntimeError(f"a mistake in round {restart}")
if sys.argv[1:] == ["wait"] or restart < 2:
    import signal
    signal.pause()
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "train.py").write_text(SCRIPT)
    for restart in range(2):
        os.mkfifo(tmp_path / f"met-{restart}")
    options = ["--warm=slow", "--nproc-per-node=2", "--max-restarts=2"]
    return [sys.executable, "-m", "holdfast", "run", *options, str(tmp_path / "train.py")]


def test_workers_of_later_rounds_are_forks_of_one_process(
    command: list[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    command.insert(-1, f"--report={report}")
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    facts = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert [fact[:2] for fact in facts] == [[n, rank] for n in range(3) for rank in range(2)]
    assert len({pid for _, _, pid, _ in facts}) == 6
    assert all(pid == by for restart, _, pid, by in facts if restart == 0)
    assert len({by for restart, _, _, by in facts if restart > 0}) == 1
    assert "RuntimeError: a mistake in round 1" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_forked_workers_outlives_the_agent(
    command: list[str], number: signal.Signals
) -> None:
    with subprocess.Popen([*command, "wait"], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        last: list[list[int]] = []
        while len(last) < 2:
            fact = json.loads(agent.stdout.readline())
            last += [fact] if fact[0] == 2 else []
        agent.send_signal(number)
        for _, _, pid, imported_by in last:
            assert pid != imported_by
            await_end(pid)
            await_end(imported_by)
        agent.stdout.read()
        agent.wait(LIMIT_S)
