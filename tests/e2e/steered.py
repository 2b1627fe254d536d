"""Real jobs for the tests of commands: started by `holdfast run`, in a home of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import until

HOLDFAST = [sys.executable, "-m", "holdfast"]
LIMIT_S = 200

WAIT = """\
import os, signal
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("a mistake")
signal.pause()
"""


class SteeredJobs:
    """Starts jobs, and asks about them as their user would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._all: list[subprocess.Popen[str]] = []
        home = folder / "home"
        home.mkdir()
        kept = ("PATH", "PYTHONDONTWRITEBYTECODE", "TMPDIR")
        clean = {name: os.environ[name] for name in kept if name in os.environ}
        self.variables = {**clean, "HOME": str(home), "OMP_NUM_THREADS": "1"}

    def script(self, text: str = WAIT) -> str:
        path = self.folder / f"script{len(self._all)}.py"
        path.write_text(text)
        return str(path)

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start an agent by `holdfast run`."""
        process = subprocess.Popen(
            [*HOLDFAST, "run", *argv],
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._all.append(process)
        return process

    def call(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [*HOLDFAST, *argv],
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )

    def status(self, *job: str) -> dict[str, Any]:
        """Return what `status --json` says; nothing if it fails."""
        done = self.call("status", "--json", *job)
        found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
        return found

    def running(self, *job: str, round_: int = 1, agents: int = 1) -> dict[str, Any]:
        """Wait until all agents of a job run in this round, with all workers; return its status."""
        found: dict[str, Any] = {}

        def there() -> bool:
            nonlocal found
            found = self.status(*job)
            told = found.get("agents", ())
            return len(told) == agents and all(
                one["round"] == round_
                and one["workers"]
                and all(worker["running"] for worker in one["workers"])
                for one in told
            )

        until(there, lambda: found, every_s=0.05)
        return found

    def close(self) -> None:
        """End what is left."""
        for process in self._all:
            process.kill()
            process.communicate(timeout=LIMIT_S)


@contextmanager
def steered_jobs(folder: Path) -> Iterator[SteeredJobs]:
    """Give what starts jobs; none is left at the end."""
    jobs = SteeredJobs(folder)
    try:
        yield jobs
    finally:
        jobs.close()
