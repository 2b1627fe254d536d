"""A process that calls: `python -m bench.rpc_caller SUBJECT SECONDS MEGABYTES,… [PART]`.

It has a callee of its own, measures for so many seconds each, all that it can or one part of it,
and prints the figures as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bench.rpc_callee import beside
from bench.rpc_calls import array, block, nothing, same, small
from bench.rpc_subject import Function, Subject
from bench.rpc_subjects import SUBJECTS
from bench.rpc_workers import FIRST, Workers

__all__ = ["AWAITED", "BLOCKING_MS", "CALLERS", "CUDA_MB", "IN_FLIGHT"]

IN_FLIGHT = 64
CALLERS = (1, 4, 16)
BLOCKING_MS = (1, 3, 10)
AWAITED = (100, 10_000)
CUDA_MB = (1, 64, 256)
MIB = 1 << 20
WAYS: dict[str, Callable[[str, int], tuple[Any, ...]]] = {
    "echo": lambda library, size: (same, array(library, size)),
    "argument": lambda library, size: (nothing, array(library, size)),
    "result": lambda library, size: (array, library, size),
}
"""How large arrays go: what is called with what."""

Figures = Iterator[tuple[str, float]]


def repeated(act: Callable[[], object], seconds: float, least: int = 2) -> list[float]:
    """Act for a while, at least so often; return how long each took.

    Before, it acts for a quarter of the time, at least twice: first calls connect and import, and
    find no memory that was used before.
    """
    _timed(act, seconds / 4, 2)
    return _timed(act, seconds, least)


def _timed(act: Callable[[], object], seconds: float, least: int) -> list[float]:
    taken: list[float] = []
    before = time.perf_counter()
    end = before + seconds
    while before < end or len(taken) < least:
        act()
        after = time.perf_counter()
        taken.append(after - before)
        before = after
    return taken


def one_call(call: Function, seconds: float, label: str, *asked: Any) -> Figures:
    """Measure one call after the other."""
    taken = sorted(repeated(partial(call, *asked), seconds, 100))
    yield f"{label} p50", 1e6 * statistics.median(taken)
    yield f"{label} p99", 1e6 * taken[len(taken) * 99 // 100]


def pipelined(subject: Subject, seconds: float) -> Figures:
    """Measure calls that do not wait for each other."""
    yield "pipelined", _in_flight(subject, seconds, nothing)


def blocking(subject: Subject, seconds: float) -> Figures:
    """Measure calls that do not wait for each other, and whose handlers block."""
    for each_ms in BLOCKING_MS:
        yield f"blocking {each_ms}", _in_flight(subject, seconds, block, each_ms / 1000)


def _in_flight(subject: Subject, seconds: float, *asked: Any) -> float:
    """Return how many calls a second are answered while so many are in flight."""
    start = subject.caller().start
    waiting: deque[Callable[[], object]] = deque()

    def many() -> None:
        for _ in range(IN_FLIGHT):  # to read the clock for each would cost a tenth of a call
            waiting.append(start(*asked))
            if len(waiting) >= IN_FLIGHT:
                waiting.popleft()()

    rate = IN_FLIGHT * _rate(repeated(many, seconds))
    while waiting:
        waiting.popleft()()
    return rate


def callers(subject: Subject, seconds: float) -> Figures:
    """Measure threads that call at once."""
    for count in CALLERS:
        gate = threading.Barrier(count)

        def run(_: int, gate: threading.Barrier = gate) -> float:
            call = subject.caller().call
            gate.wait()
            return _rate(repeated(partial(call, nothing), seconds))

        with ThreadPoolExecutor(count) as threads:
            yield f"callers {count}", sum(threads.map(run, range(count)))


def _rate(taken: list[float]) -> float:
    return len(taken) / sum(taken)


def large_calls(subject: Subject, seconds: float, megabytes: tuple[int, ...]) -> Figures:
    """Measure large arrays, there and back and one way."""
    call = subject.caller().call
    for way, asked in WAYS.items():
        for size in megabytes:
            parts = asked(subject.library, size * MIB)
            taken = statistics.median(repeated(partial(call, *parts), seconds / 2))
            yield f"{way} {size}", 1e3 * taken


def processor(subject: Subject, seconds: float) -> Figures:
    """Measure how much of a processor's time a call takes, on both sides."""
    call = subject.caller().call
    _timed(partial(call, nothing), seconds / 4, 2)
    callee, caller = call(time.process_time), time.process_time()
    count = len(_timed(partial(call, nothing), seconds, 100))
    yield "cpu caller", 1e6 * (time.process_time() - caller) / count
    yield "cpu callee", 1e6 * (call(time.process_time) - callee) / count


def awaited(subject: Workers, seconds: float) -> Figures:
    """Measure calls that are awaited together, in an event loop."""

    async def gather(count: int) -> None:
        await asyncio.gather(*(subject.future(nothing) for _ in range(count)))

    def together(count: int) -> None:
        asyncio.run(gather(count))

    for count in AWAITED:
        taken = repeated(partial(together, count), seconds)
        yield f"await {count}", count / statistics.median(taken)


def cuda_calls(subject: Subject, seconds: float) -> Figures:
    """Measure tensors on a GPU, there and back, if there is one."""
    import torch

    if not torch.cuda.is_available():
        return
    call = subject.caller().call

    def echo(tensor: Any) -> None:
        call(same, tensor)
        torch.cuda.synchronize()

    for size in CUDA_MB:
        tensor = array("torch", size * MIB).cuda()
        taken = statistics.median(repeated(partial(echo, tensor), seconds / 2))
        yield f"cuda {size}", 1e3 * taken


def measured(subject: Subject, seconds: float, megabytes: tuple[int, ...], part: str) -> Figures:
    """Measure whatever can be measured of it, or a part of that."""
    wanted = [one for one in subject.measures if part in ("", one)]
    if "no-op" in wanted:
        yield from one_call(subject.caller().call, seconds, "no-op", nothing)
    if "matrix" in wanted:
        matrix = small(subject.library)
        yield from one_call(subject.caller().call, seconds, "matrix", same, matrix)
    if "pipelined" in wanted:
        yield from pipelined(subject, seconds)
    if "blocking" in wanted:
        yield from blocking(subject, seconds)
    if "callers" in wanted:
        yield from callers(subject, seconds)
    if "large" in wanted:
        yield from large_calls(subject, seconds, megabytes)
    if "cpu" in wanted:
        yield from processor(subject, seconds)
    if "cuda" in wanted:
        yield from cuda_calls(subject, seconds)
    if "await" in wanted:
        assert isinstance(subject, Workers)
        yield from awaited(subject, seconds)
    if "training" in wanted:
        from bench.rpc_training import training  # imports torch

        yield from training(FIRST, repeated, seconds)


def main(name: str, seconds: str, megabytes: str, part: str = "") -> None:
    subject = SUBJECTS[name]()
    every = map(int, megabytes.split(","))
    sizes = tuple(size for size in every if size <= subject.megabytes_max)
    with beside("bench.rpc_callee", name) as folder:
        subject.connect(folder)
        print(json.dumps(dict(measured(subject, float(seconds), sizes, part))), flush=True)
        subject.close()
    os._exit(0)  # torch's agent has no quick end


if __name__ == "__main__":
    main(*sys.argv[1:])
