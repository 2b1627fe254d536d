"""Stacks of many workers, merged: ranks that are at the same place are one class.

A stack is what faulthandler writes: a section for each thread, the newest thread first, and in each
the newest frame first. The last section is the main thread. The numbers of threads say nothing, and
are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from holdfast.records import dataclass

__all__ = ["StackClass", "merge_stacks", "read_threads"]

_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(.*)\])?.*:")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_NAMED = 6


@dataclass(frozen=True, slots=True)
class StackClass:
    """Ranks that are at one place: `summary` in one line, `lines` for the whole of it."""

    ranks: tuple[int, ...]
    summary: str
    lines: tuple[str, ...]


def merge_stacks(workers: Iterable[dict[str, Any]]) -> list[StackClass]:
    """Merge what agents say of their workers: the most ranks first."""
    classes: dict[tuple[Any, ...], tuple[str, tuple[str, ...], list[int]]] = {}
    for worker in workers:
        key, summary, lines = _place(worker)
        classes.setdefault(key, (summary, lines, []))[2].append(int(worker.get("rank", -1)))
    merged = [
        StackClass(tuple(sorted(ranks)), summary, lines)
        for summary, lines, ranks in classes.values()
    ]
    return sorted(merged, key=lambda one: (-len(one.ranks), one.ranks))


def read_threads(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the threads of a stack, the main thread first: a name, if there is one, and frames."""
    threads: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if header := _THREAD.match(line):
            threads.append((header[1] or "", []))
        elif line.startswith("  ") and threads:
            threads[-1][1].append(line.strip())
    return [(name, tuple(frames)) for name, frames in reversed(threads)]


def _place(worker: dict[str, Any]) -> tuple[tuple[Any, ...], str, tuple[str, ...]]:
    """Return what makes workers equal, and where they are in one line and in many."""
    state, waits_in = str(worker.get("state", "?")), str(worker.get("waits_in", ""))
    threads = read_threads(str(worker.get("text", "")))
    if not threads:
        waits = f" in the kernel's {waits_in}" if waits_in else ""
        text = f"no stack: {worker.get('why') or 'it is empty'}; {state}{waits}"
        return ("", text), text, ()
    lines = []
    for number, (name, frames) in enumerate(threads):
        title = "main thread" if number == 0 else f"thread {name}".rstrip()
        lines += [f"{title}:", *(f"  {frame}" for frame in frames or ("no Python frame",))]
    return tuple(threads), _functions(threads[0][1]), tuple(lines)


def _functions(frames: tuple[str, ...]) -> str:
    """Return the functions of a stack, the newest first."""
    names = [found[3] for frame in frames if (found := _FRAME.match(f"  {frame}"))]
    more = [] if len(names) <= _NAMED else ["…"]
    return " ← ".join(names[:_NAMED] + more) or "no Python frame"
