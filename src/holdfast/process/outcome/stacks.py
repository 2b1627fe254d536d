"""Where workers are: the stacks of their threads, or what the kernel says of their processes.

Python in a worker writes the stacks of all its threads to the worker's file when STACK_SIGNAL
comes, also while native code holds the interpreter's lock; child.py arranges that. The signal would
end any other program, so only a process that catches it may be sent one.

What is read on demand is taken out of the file: what stands there when the worker ends is where it
was then. The worker goes on writing behind it, so that the file may begin with a hole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.process.outcome.errorfile import is_whole_stack, read_stack
from holdfast.process.spec import Launch
from holdfast.process.start.child import STACK_SIGNAL
from holdfast.records import dataclass

__all__ = ["STACK_SIGNAL", "WorkerStack", "kernel_state", "take_stacks", "writes_stacks"]

ANSWER_WITHIN_S = 1.0
_LOOK_EVERY_S = 0.01
_SETTLED_S = 0.2
"""A file that has not grown for so long is whole, if its last line does not say so."""

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a device",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended",
    "X": "ended",
    "I": "idle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStack:
    """Where a worker is: `text` as Python writes it, or `why` there is none.

    `state` is the kernel's, `waits_in` the function of the kernel in which its first thread waits.
    """

    rank: int
    pid: int
    state: str
    waits_in: str = ""
    text: str = ""
    why: str = ""


def writes_stacks(pid: int) -> bool:
    """Say whether a process catches STACK_SIGNAL; False where the system does not tell."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(line for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (STACK_SIGNAL - 1) & 1)


def kernel_state(pid: int) -> tuple[str, str]:
    """Return a process's state in words, and the kernel's function that it waits in, if known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            letter = file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "ended", ""
    waits_in = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan", "rb") as file:
        waits_in = file.read(100).decode("ascii", "replace")
    return _STATES.get(letter, letter), "" if waits_in == "0" else waits_in


def take_stacks(
    workers: Iterable[tuple[Launch, int]],
    ask: Callable[[int], bool],
    *,
    within_s: float = ANSWER_WITHIN_S,
    clock: Clock = SYSTEM_CLOCK,
) -> list[WorkerStack]:
    """Return where these workers are, by launch and pid; blocks for `within_s` at most.

    `ask` sends STACK_SIGNAL to a process if it is a worker still and catches it, and says whether
    it did. A process that is stopped is not asked: it would answer too late.
    """
    waits, found = [], []
    for launch, pid in workers:
        state, waits_in = kernel_state(pid)
        told = WorkerStack(rank=launch.rank, pid=pid, state=state, waits_in=waits_in)
        before = _size(launch)
        if state.startswith(("stopped", "ended")):
            found.append(replace(told, why="the process does not run"))
        elif not ask(pid):
            found.append(replace(told, why="it is no Python that writes its stacks"))
        else:
            waits.append((launch, told, before))
    deadline = Deadline.after(within_s, clock)
    for launch, told, before in waits:
        text = _wait_for_stack(launch, before, deadline, clock)
        why = "" if text else f"it did not answer within {within_s:g} s"
        found.append(replace(told, text=text, why=why))
    return sorted(found, key=lambda one: one.rank)


def _wait_for_stack(launch: Launch, before: int, deadline: Deadline, clock: Clock) -> str:
    size, since = before, clock.monotonic()
    while True:
        now, seen = clock.monotonic(), _size(launch)
        if seen != size:
            size, since = seen, now
        if size > before and (now >= since + _SETTLED_S or is_whole_stack(launch.stack_file)):
            break
        if deadline.passed():
            break
        clock.sleep(_LOOK_EVERY_S)
    if size <= before:
        return ""
    text = read_stack(launch.stack_file)
    with contextlib.suppress(OSError):
        os.truncate(launch.stack_file, 0)
    return text


def _size(launch: Launch) -> int:
    try:
        return os.stat(launch.stack_file, follow_symlinks=False).st_size
    except OSError:
        return 0
