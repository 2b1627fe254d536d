"""The machine that measures: what it has, and what a row of the aims needs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from bench.subjects import ROOT, available

__all__ = ["CORES", "Machine", "inspect", "lacks"]

CORES = 16
"""How many processors the aims for large machines are for."""
IDLE_SHARE = 0.1
"""The most of its processors that an idle machine uses."""
LOOK_S = 1.0


class Machine(NamedTuple):
    """What was found. `busy` is how many processors were in use before the run began."""

    system: str
    python: str
    torch: str
    commit: str
    cores: int
    busy: float
    gpu: str
    networks: str
    """Why this process cannot make networks of its own; empty if it can."""

    @property
    def idle(self) -> bool:
        return self.busy <= IDLE_SHARE * self.cores

    def __str__(self) -> str:
        torch = f"torch {self.torch}" if self.torch else "no torch"
        parts = [self.system, f"Python {self.python}", torch, f"commit {self.commit}"]
        busy = f"{self.cores} cores, {self.busy:.1f} of them busy before the run"
        return ", ".join([*parts, busy, self.gpu or "no GPU"])


def inspect() -> Machine:
    """Look at this machine for a moment; to be called before anything is measured."""
    return Machine(
        system=platform.platform(),
        python=platform.python_version(),
        torch=_torch(),
        commit=_output("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        cores=len(os.sched_getaffinity(0)),
        busy=_busy(),
        gpu=_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").partition("\n")[0],
        networks=_no_networks(),
    )


def lacks(machine: Machine, needs: tuple[str, ...]) -> str:
    """Return in words what the machine lacks of what a row needs; empty if nothing."""
    found = []
    for need in needs:
        if need == "torch" and not machine.torch:
            found.append("torch")
        elif need == "gpu" and not machine.gpu:
            found.append("a GPU")
        elif need == "networks" and machine.networks:
            found.append(f"networks of its own ({machine.networks})")
        elif need == "cores" and machine.cores < CORES:
            found.append(f"{CORES} cores, there are {machine.cores}")
        elif need in ("idle", "cores") and not machine.idle:
            found.append(f"an idle machine, {machine.busy:.1f} of {machine.cores} cores were busy")
    return f"needs {'; '.join(found)}" if found else ""


def _torch() -> str:
    if not available("torch"):
        return ""
    from importlib.metadata import version

    return version("torch")


def _output(*command: str) -> str:
    """Return what a program prints; nothing if there is none, or if it fails."""
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip() if done.returncode == 0 else ""


def _busy() -> float:
    """Return how many processors of the whole machine are in use."""
    before = _ticks()
    time.sleep(LOOK_S)
    after = _ticks()
    used, idle = (now - then for now, then in zip(after, before, strict=True))
    return (os.cpu_count() or 1) * used / max(1, used + idle)


def _ticks() -> tuple[int, int]:
    """Return the time of all processors since the system started: in use, and idle."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return sum(numbers) - idle, idle


def _no_networks() -> str:
    if os.geteuid() != 0:
        return "only root can make them"
    if not shutil.which("ip"):
        return "there is no `ip`"
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return made.stderr.strip()
