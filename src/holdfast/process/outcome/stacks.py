"""Which workers can be asked for their stacks, before they are killed.

Python in a worker writes the stacks of all its threads to the worker's file when STACK_SIGNAL
comes, also while native code holds the interpreter's lock; child.py arranges that. The signal would
end any other program, so only a process that catches it may be sent one.
"""

from __future__ import annotations

from holdfast.process.start.child import STACK_SIGNAL

__all__ = ["STACK_SIGNAL", "writes_stacks"]


def writes_stacks(pid: int) -> bool:
    """Say whether a process catches STACK_SIGNAL; False where the system does not tell."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(line for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (STACK_SIGNAL - 1) & 1)
