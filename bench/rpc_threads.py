"""Threads that call synchronously, all at once; and threads that make one call and end.

`python -m bench.rpc_threads SUBJECT SECONDS CALLS CROWD,…` has a callee of its own, and prints the
figures as one line of JSON. Without crowds, threads make one call and end.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable

from bench.growth import series
from bench.rpc import medians, take_turns
from bench.rpc_callee import beside
from bench.rpc_caller import Figures
from bench.rpc_calls import nothing
from bench.rpc_report import Data
from bench.rpc_subjects import SUBJECTS
from bench.table import number, render

__all__ = ["AT_ONCE", "threads"]

CROWDS = (1, 4, 16, 64, 300)
AT_ONCE = 100
NAMES = ("holdfast", "torch")


def threads(seconds: float, calls: int, rounds: int, part: str = "") -> tuple[str, object]:
    """Measure both in turn: calls a second, and the fewest and most calls of one thread."""
    crowds = "" if part == "once" else ",".join(map(str, CROWDS))
    once = "0" if part == "crowd" else str(calls)
    found = take_turns("rpc_threads", NAMES, rounds, str(seconds), once, crowds)
    data = {name: medians(figures) for name, figures in found.items()}
    return _table(data), {"rounds": found, "medians": data, "growth": _growth(data)}


def _table(data: dict[str, Data]) -> str:
    rows = []
    for name, figures in data.items():
        label = SUBJECTS[name].label
        if isinstance(figures, str):
            rows.append([label, figures, "", ""])
            continue
        for what, rate in sorted(figures.items(), key=lambda item: _sorting(item[0])):
            kind, count, *rest = what.split()
            if not rest:
                words = "threads that call" if kind == "crowd" else "at a time, one call each"
                few, many = (figures.get(f"{what} {end}") for end in ("fewest", "most"))
                ends = ["" if end is None else number(end) for end in (few, many)]
                rows.append([f"{label}: {count} {words}", number(rate), *ends])
    head = ["", "calls a second", "fewest of one thread", "most"]
    return render("RPC: synchronous calls of many threads", head, rows)


def _sorting(what: str) -> tuple[str, int]:
    kind, count, *_ = what.split()
    return kind, int(count)


def _growth(data: dict[str, Data]) -> dict[str, dict[str, object]]:
    """Return how the time of a call grows with the threads that call, all of them together."""
    found: dict[str, object] = {}
    for name, figures in data.items():
        if not isinstance(figures, str):
            rates = {crowd: figures.get(f"crowd {crowd}") for crowd in CROWDS}
            found[name] = series({crowd: 1e6 / rate for crowd, rate in rates.items() if rate})
    return {"threads that call: one call of all together, µs": found}


# In the process that calls.


def _call_for(call: Callable[..., object], seconds: float, crowd: int) -> list[int]:
    """Return how many calls each thread makes within these seconds."""
    counts, over, begin = [0] * crowd, threading.Event(), threading.Barrier(crowd + 1)

    def work(number: int) -> None:
        begin.wait()
        while not over.is_set():
            call(nothing)
            counts[number] += 1

    crowd_of = [threading.Thread(target=work, args=(number,)) for number in range(crowd)]
    for thread in crowd_of:
        thread.start()
    begin.wait()
    time.sleep(seconds)
    over.set()
    for thread in crowd_of:
        thread.join()
    return counts


def _call_once(call: Callable[..., object], calls: int, together: int) -> float:
    """Return calls a second of threads that are started for one call each."""
    begun = time.perf_counter()
    for _ in range(calls // together):
        some = [threading.Thread(target=call, args=(nothing,)) for _ in range(together)]
        for thread in some:
            thread.start()
        for thread in some:
            thread.join()
    return calls / (time.perf_counter() - begun)


def measured(call: Callable[..., object], seconds: float, calls: int, crowds: list[int]) -> Figures:
    call(nothing)
    for crowd in crowds:
        counts = _call_for(call, seconds, crowd)
        yield f"crowd {crowd}", sum(counts) / seconds
        yield f"crowd {crowd} fewest", min(counts)
        yield f"crowd {crowd} most", max(counts)
    for together in (1, AT_ONCE) if calls else ():
        yield f"once {together}", _call_once(call, calls, together)


def main(name: str, seconds: str, calls: str, crowds: str) -> None:
    subject = SUBJECTS[name]()
    with beside("bench.rpc_callee", name) as folder:
        subject.connect(folder)
        every = [int(crowd) for crowd in crowds.split(",") if crowd]
        print(json.dumps(dict(measured(subject.call, float(seconds), int(calls), every))))
        sys.stdout.flush()
        subject.close()
    os._exit(0)  # torch's agent has no quick end


if __name__ == "__main__":
    main(*sys.argv[1:])
