"""A process that sends values: `python -m bench.rpc_payloads SUBJECT SECONDS [PART]`.

It has a callee of its own, measures for so many seconds each, all that it can or one part of it,
and prints the figures as one line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.rpc_callee import beside
from bench.rpc_caller import MIB, Figures, repeated
from bench.rpc_calls import array, nothing, nothing_with, same, tiny
from bench.rpc_subject import Subject
from bench.rpc_subjects import SUBJECTS
from bench.rpc_workers import Workers

__all__ = ["BESIDE_MB", "BYTES_MB", "LIVE", "beside_large"]

BYTES_MB = 128
BESIDE_MB = 64
LIVE = (0, 5_000, 20_000)


def echo(subject: Subject, seconds: float) -> Figures:
    """Measure a megabyte there and back."""
    parts = (same, array(subject.library, MIB))
    yield "echo 1", 1e3 * statistics.median(repeated(partial(subject.call, *parts), seconds, 20))


def bytes_calls(subject: Workers, seconds: float) -> Figures:
    """Measure many bytes, by the place that they have among the arguments."""
    data = bytes(array("numpy", BYTES_MB * MIB))
    ways = {
        "positional": partial(subject.call, nothing, data),
        "keyword": partial(subject.call_with, nothing_with, {"data": data}),
        "list": partial(subject.call, nothing, [data]),
        "array": partial(subject.call, nothing, array(subject.library, BYTES_MB * MIB)),
    }
    for way, call in ways.items():
        yield f"bytes {way}", 1e3 * statistics.median(repeated(call, seconds))


def tiny_calls(subject: Workers, seconds: float) -> Figures:
    """Measure an array of a few numbers, and its bytes, in turns."""
    values = {"array": tiny(), "bytes": tiny().tobytes()}
    taken: dict[str, list[float]] = {what: [] for what in values}
    for _ in range(10):
        for what, value in values.items():
            taken[what] += repeated(partial(subject.call, nothing, value), seconds / 10, 20)
    for what, times in taken.items():
        yield f"tiny {what}", 1e6 * statistics.median(times)


def references(subject: Workers, seconds: float) -> Figures:
    """Measure `remote` and `to_here`, beside more and more references that are alive."""
    alive: list[Any] = []
    for count in LIVE:
        while len(alive) < count:
            alive.append(subject.remote(nothing))
            alive[-1].to_here()
        taken = repeated(lambda: subject.remote(nothing).to_here(), seconds, 100)
        yield f"remote {count}", 1e6 * statistics.median(taken)


def beside_large(subject: Subject, seconds: float) -> Figures:
    """Measure small asynchronous calls while another thread echoes large arrays."""
    large, ended = array(subject.library, BESIDE_MB * MIB), threading.Event()

    def echo_large() -> None:
        while not ended.is_set():
            subject.start(same, large)()

    def call_small() -> None:
        subject.start(nothing)()

    thread = threading.Thread(target=echo_large)
    thread.start()
    try:
        taken = sorted(repeated(call_small, 4 * seconds, 100))
    finally:
        ended.set()
        thread.join()
    yield "beside p50", 1e3 * statistics.median(taken)
    yield "beside p99", 1e3 * taken[len(taken) * 99 // 100]


OF_WORKERS: dict[str, Callable[[Workers, float], Figures]] = {
    "tiny": tiny_calls,
    "references": references,
    "beside": beside_large,
    "bytes": bytes_calls,
}


def main(name: str, seconds_each: str, part: str = "") -> None:
    subject, seconds = SUBJECTS[name](), float(seconds_each)
    with beside("bench.rpc_callee", name) as folder:
        subject.connect(folder)
        figures = dict(echo(subject, seconds)) if part in ("", "echo") else {}
        for name_, measure in OF_WORKERS.items():
            if isinstance(subject, Workers) and part in ("", name_):
                figures |= dict(measure(subject, seconds))
        print(json.dumps(figures), flush=True)
        subject.close()
    os._exit(0)  # torch's agent has no quick end


if __name__ == "__main__":
    main(*sys.argv[1:])
