"""Forked processes that do the same at once, phase by phase."""

from __future__ import annotations

import itertools
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["Phase", "together"]

_WORD = 8
_ENDED, _FAILED = -1, -2
_PATIENCE_S = 300.0


class Phase(NamedTuple):
    """How long the slowest took, and the largest number that a process gave at its end."""

    seconds: float
    most: int


def together(count: int, act: Callable[[int], Iterator[int]]) -> list[Phase]:
    """Fork processes that run `act` with their rank; return its phases.

    At each `yield` a process waits for the others: the first ends what is not measured, each
    further one a phase. What is yielded is a number, such as one of threads.
    """
    done, gates = os.pipe(), [os.pipe() for _ in range(count)]
    children = []
    for rank, (gate, _) in enumerate(gates):
        child = os.fork()
        if child == 0:
            _run(act(rank), done[1], gate)
        children.append(child)
    os.close(done[1])
    phases: list[Phase] = []
    try:
        _gather(done[0], count)
        while True:
            began = time.perf_counter()
            for _, opening in gates:
                os.write(opening, b"x")
            most = _gather(done[0], count)
            if most == _ENDED:
                return phases
            phases.append(Phase(time.perf_counter() - began, most))
    finally:
        for descriptor in (done[0], *itertools.chain(*gates)):
            os.close(descriptor)
        for child in children:
            os.kill(child, signal.SIGKILL)  # where one has failed, others would wait for it
            os.waitpid(child, 0)


def _run(phases: Iterator[int], done: int, gate: int) -> None:
    """Run the phases in a forked process, and end it."""
    try:
        for number in phases:
            os.write(done, number.to_bytes(_WORD, "little", signed=True))
            os.read(gate, 1)
        os.write(done, _ENDED.to_bytes(_WORD, "little", signed=True))
    except BaseException:
        traceback.print_exc()
        os.write(done, _FAILED.to_bytes(_WORD, "little", signed=True))
    finally:
        os._exit(0)  # torch's agents have no quick end


def _gather(done: int, count: int) -> int:
    """Wait until every process has come to the end of a phase; return the largest number."""
    numbers: list[int] = []
    while len(numbers) < count:
        if not select.select([done], [], [], _PATIENCE_S)[0]:
            raise SystemExit(f"a process did nothing for {_PATIENCE_S:g} s")
        data = os.read(done, _WORD)  # a pipe keeps what is written at once together
        numbers.append(int.from_bytes(data, "little", signed=True) if data else _FAILED)
        if numbers[-1] == _FAILED:
            raise SystemExit("a process failed")
    return max(numbers)
