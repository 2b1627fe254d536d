"""Every row that the project aims at: where its figures are in a run's data, and its bound.

A row is measured by one measurement, or by one part of it, so that it can be measured alone. What
it needs of the machine is listed: `torch`, an `idle` machine, 16 idle `cores`, a `gpu`, `networks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.rpc_caller import AWAITED, BLOCKING_MS, CUDA_MB
from bench.rpc_hosts import HOST_MB
from bench.rpc_payloads import BYTES_MB, LIVE
from bench.rpc_threads import AT_ONCE

__all__ = ["AIMS", "Aim", "Place"]

Place = tuple[str, ...]
"""Where a figure is: keys, from the outermost on."""


class Aim(NamedTuple):
    """One row. What is bounded is the figure at `ours`, divided by that at `by` if there is one."""

    name: str
    work: str
    unit: str
    measurement: str
    part: str
    ours: Place
    sense: str
    bound: float
    by: Place | None = None
    torch: Place | None = None
    needs: tuple[str, ...] = ()


def _of_torch(
    name: str, work: str, unit: str, place: tuple[str, str, Place], sense: str, bound: float
) -> Aim:
    """Return a row that is a share of torch's figure; in the place, `holdfast` is one of the keys.

    The place is the measurement, its part, and the keys.
    """
    measurement, part, ours = place
    theirs = tuple("torch" if key in ("holdfast", "facade") else key for key in ours)
    return Aim(name, work, unit, measurement, part, ours, sense, bound, theirs, theirs, ("torch",))


def _calls() -> Iterator[Aim]:
    rpc: Place = ("medians", "holdfast")
    one = (*rpc, "no-op p50")
    work = "one small call"
    yield _of_torch("call", work, "µs", ("rpc", "no-op", one), "≤", 1 / 8)
    limit = ("medians", "bytes", "no-op p50")
    yield Aim("call-raw", "… of bytes over a socket", "µs", "rpc", "no-op", one, "≤", 2.5, limit)
    for each_ms in BLOCKING_MS:
        work = f"calls in flight whose handler blocks {each_ms} ms"
        place = ("rpc", "blocking", (*rpc, f"blocking {each_ms}"))
        yield _of_torch(f"blocking-{each_ms}", work, "a second", place, "≥", 1.2)
    many = (*rpc, "pipelined")
    work = "no-op calls, 64 in flight"
    yield _of_torch("pipelined", work, "a second", ("rpc", "pipelined", many), "≥", 20)
    work = "… on an idle machine"
    yield Aim(
        "pipelined-idle", work, "a second", "rpc", "pipelined", many, "≥", 150_000, needs=("idle",)
    )
    for count in AWAITED:
        work, ours = f"`await` of {count:,} calls at once", (*rpc, f"await {count}")
        yield Aim(f"await-{count}", work, "a second", "rpc", "await", ours, "≥", 40_000)


def _by_torchs_names() -> Iterator[Aim]:
    rows = [
        ("no-op p50", "no-op", "call-by-name", "one small call", "µs", "≤", 1 / 6),
        ("pipelined", "pipelined", "pipelined-by-name", "no-op calls, 64 in flight", "", "≥", 15),
        ("references", "training", "references-by-name", "`remote` and `to_here`", "", "≥", 3),
        ("backward", "training", "backward-by-name", "a call and its backward", "", "≥", 1.5),
        ("steps", "training", "steps-by-name", "training steps of a model elsewhere", "", "≥", 1.5),
    ]
    for figure, part, name, work, unit, sense, bound in rows:
        place = ("torch-rpc", part, ("medians", "facade", figure))
        label = f"by torch's names: {work}"
        yield _of_torch(name, label, unit or "a second", place, sense, bound)
    for size, bound in zip(CUDA_MB, (0.6, 0.8, 1.2), strict=True):
        ours, theirs = (("medians", who, f"cuda {size}") for who in ("facade", "torch"))
        yield Aim(
            f"gpu-{size}",
            f"{size} MB from GPU to GPU and back",
            "ms",
            "torch-rpc",
            "cuda",
            ours,
            "≤",
            bound,
            torch=theirs,
            needs=("gpu", "torch"),
        )


def _threads() -> Iterator[Aim]:
    rpc: Place = ("medians", "holdfast")
    work = "16 threads that call: rate of one thread's"
    ours, one, theirs = (*rpc, "crowd 16"), (*rpc, "crowd 1"), ("medians", "torch", "crowd 16")
    yield Aim("threads-16", work, "a second", "threads", "crowd", ours, "≥", 1, one, theirs)
    for crowd in (16, 300):
        work = f"{crowd} threads that call: most calls of one, of the fewest"
        most, fewest = (*rpc, f"crowd {crowd} most"), (*rpc, f"crowd {crowd} fewest")
        yield Aim(f"fair-{crowd}", work, "calls", "threads", "crowd", most, "≤", 5, fewest)
    for count in (1, AT_ONCE):
        work = f"threads that make one call and end, {count} at a time"
        place = ("threads", "once", (*rpc, f"once {count}"))
        yield _of_torch(f"once-{count}", work, "a second", place, "≥", 3)


def _worlds() -> Iterator[Aim]:
    bounds = [("init", "s", 2.0), ("calls", "s", 2.0), ("shutdown", "s", 1.0), ("threads", "", 10)]
    for figure, unit, bound in bounds:
        ours = ("figures", "256", "holdfast", figure)
        work = {
            "init": "a world of 256 workers: `init_rpc`",
            "calls": "… first calls of all to all",
            "shutdown": "… shutdown",
            "threads": "… threads of a worker",
        }[figure]
        yield Aim(f"world-{figure}", work, unit, "worlds", "", ours, "≤", bound, needs=("cores",))
    for figure in ("init", "calls", "shutdown"):
        ours = ("growth", f"peers of a world: {figure}, s", "holdfast", "exponent")
        yield Aim(
            f"world-{figure}-growth",
            f"… {figure}: exponent in the workers",
            "",
            "worlds",
            "",
            ours,
            "≤",
            1.1,
            needs=("cores",),
        )


def _values() -> Iterator[Aim]:
    def ours(figure: str) -> Place:
        return ("local", "holdfast", figure)

    work = "1 MB there and back"
    yield _of_torch("echo-1", work, "ms", ("values", "echo", ours("echo 1")), "≤", 1 / 3)
    copies = ("local", "copies", "echo 1")
    yield Aim(
        "echo-1-raw", "… of two copies", "ms", "values", "echo", ours("echo 1"), "≤", 3, copies
    )
    large, copies = ("medians", "holdfast", "echo 64"), ("medians", "copies", "echo 64")
    work = "64 MB there and back, of two copies"
    yield Aim("echo-64-raw", work, "ms", "rpc", "large", large, "≤", 1.5, copies)
    for way in ("keyword", "list"):
        work = f"{BYTES_MB} MB of bytes in a {way}"
        yield Aim(f"bytes-{way}", work, "ms", "values", "bytes", ours(f"bytes {way}"), "≤", 50)
    work = "array of 4 numbers, of its bytes' time"
    small = ours("tiny bytes")
    yield Aim("tiny", work, "µs", "values", "tiny", ours("tiny array"), "≤", 1.3, small)
    for count in LIVE[1:]:
        work, figure = f"`remote` and `to_here`, {count:,} live", f"remote {count}"
        theirs = ("local", "torch", figure)
        yield Aim(
            f"remote-{count}", work, "µs", "values", "references", ours(figure), "≤", 60,
            torch=theirs,
        )  # fmt: skip
    work = "small call beside 64 MB ones, p99"
    yield Aim("beside", work, "ms", "values", "beside", ours("beside p99"), "≤", 5)


def _hosts() -> Iterator[Aim]:
    needs: tuple[str, ...] = ("networks",)
    for size in HOST_MB:
        figure, bound = f"echo {size:g}", 2.5 if size <= 1 else 1.3
        ours, raw, theirs = (("hosts", who, figure) for who in ("holdfast", "tcp", "torch"))
        work = f"between hosts: {size:g} MB there and back, of raw TCP"
        yield Aim(
            f"hosts-{size:g}", work, "ms", "values", "hosts", ours, "≤", bound, raw, theirs, needs
        )
    ours, theirs = (("hosts", who, "pipelined") for who in ("holdfast", "torch"))
    work = "between hosts: no-op calls in flight"
    needs += ("torch",)
    yield Aim(
        "hosts-pipelined", work, "a second", "values", "hosts", ours, "≥", 15, theirs, theirs, needs
    )


def _stores() -> Iterator[Aim]:
    ours: Place
    theirs: Place
    for ranks in ("16", "64"):
        ours, theirs = (("init", ranks, who) for who in ("store_server", "torch"))
        work = f"{ranks} ranks: `init_process_group` and a barrier"
        needs = ("torch", "cores")
        yield Aim(
            f"ranks-{ranks}-init", work, "s", "groups", "", ours, "≤", 1.1, theirs, theirs, needs
        )
        ours, theirs = (("add", ranks, who) for who in ("store_server", "torch"))
        work = f"{ranks} ranks: `add` of all together"
        yield Aim(
            f"ranks-{ranks}-add", work, "a second", "groups", "", ours, "≥", 80_000, None, theirs,
            needs,
        )  # fmt: skip
    ours, theirs = (("add, 1", who, "rate") for who in ("tcp", "torch"))
    work, needs = "store `tcp://`: `add` of one client", ("torch", "idle")
    yield Aim("store-add", work, "a second", "rates", "add", ours, "≥", 0.5, theirs, theirs, needs)
    ours, theirs = ((who, "p50_us") for who in ("tcp:// wait", "torch TCPStore wait"))
    work = "store `tcp://`: wake-up of a waiter"
    yield Aim("store-wake", work, "µs", "wakeups", "", ours, "≤", 2, theirs, theirs, needs)


def _restarts() -> Iterator[Aim]:
    ours: Place
    needs = ("cores",)
    for workers, bound in {8: 12.0, 64: 45.0, 256: 160.0}.items():
        label = f"{workers} programs"
        ours, theirs = ((label, who) for who in ("holdfast", "torchrun"))
        work = f"restart of {label}"
        yield Aim(
            f"restart-{workers}", work, "ms", "restarts", "programs", ours, "≤", bound, None,
            theirs, needs,
        )  # fmt: skip
        ours, theirs = ((f"{label}, processors", who) for who in ("holdfast", "torchrun"))
        work = "… of processors, for each worker"
        yield Aim(
            f"restart-{workers}-cpu", work, "ms", "restarts", "programs", ours, "≤", 6, None,
            theirs, needs,
        )  # fmt: skip
    for workers, bound in {4: 8.0, 8: 10.0}.items():
        ours, work = (f"{workers} warm", "holdfast"), f"restart of {workers} workers, `--warm json`"
        yield Aim(f"warm-{workers}", work, "ms", "restarts", "warm", ours, "≤", bound, needs=needs)
    ours = ("growth", "processes of the host: restart, ms", "holdfast", "exponent")
    work = "… exponent in the processes of the host"
    yield Aim("warm-others", work, "", "restarts", "others", ours, "≤", 0.1)
    ours, theirs = (("soon", who) for who in ("holdfast", "torchrun"))
    work = "restart of workers that import torch, `--warm torch`"
    yield Aim(
        "warm-torch", work, "ms", "restarts", "soon", ours, "≤", 1 / 8, theirs, theirs, ("torch",)
    )


def _page() -> Iterator[Aim]:
    work = "the page, 256 nodes of 8 workers: 95 of 100 frames within"
    yield Aim("page", work, "ms", "page", "", ("95 of 100",), "≤", 34, needs=("idle",))


AIMS: tuple[Aim, ...] = (
    *_calls(),
    *_by_torchs_names(),
    *_threads(),
    *_worlds(),
    *_values(),
    *_hosts(),
    *_stores(),
    *_restarts(),
    *_page(),
)
