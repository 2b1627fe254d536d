"""What a process has used and written, as the kernel counts it; 0 where it does not tell."""

from __future__ import annotations

import os

__all__ = ["cpu_seconds", "written_bytes"]

_NS = 1e-9


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of all its threads that run."""
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                total += int(file.read().split()[0])
    except (OSError, IndexError, ValueError):
        pass  # it ended meanwhile, or the kernel keeps no such counts
    return total * _NS


def written_bytes(pid: int) -> int:
    """Return how many bytes it wrote to files, pipes and terminals."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            told = dict(line.split(b": ") for line in file.read().splitlines())
        return int(told[b"wchar"])
    except (OSError, KeyError, ValueError):
        return 0
