"""Values that calls carry, on one host and between two: ours, torch's, and what the machine allows.

Everyone takes a turn in each round; a figure is the median of the rounds.
"""

from __future__ import annotations

from typing import NamedTuple

from bench.progress import say
from bench.rpc import Rounds, medians, run, take_turns
from bench.rpc_hosts import HOST_MB, HOSTS
from bench.rpc_payloads import BESIDE_MB, BYTES_MB, LIVE
from bench.rpc_report import Data
from bench.table import number, render

__all__ = ["values"]

LOCAL = ("copies", "holdfast", "torch")
UNSHARE = ("unshare", "--net")


class Row(NamedTuple):
    """A figure of ours, and by whose figure it is divided."""

    label: str
    figure: str
    by: str = ""
    """Another subject; or, after "=", another figure of ours."""


def _local_rows() -> list[Row]:
    rows = [
        Row("1 MB there and back, ms; of torch's", "echo 1", "torch"),
        Row("… of two copies' time", "echo 1", "copies"),
        Row("array of 4 numbers, µs; of its bytes'", "tiny array", "=tiny bytes"),
    ]
    for way in ("positional", "keyword", "list", "array"):
        what = "an array" if way == "array" else f"bytes, {way}"
        rows.append(Row(f"{BYTES_MB} MB: {what}, ms", f"bytes {way}"))
    for count in LIVE:
        rows.append(Row(f"`remote` and `to_here`, {count:,} live, µs", f"remote {count}"))
    label = f"small asynchronous call beside {BESIDE_MB} MB ones"
    rows.append(Row(f"{label}, p50, ms", "beside p50"))
    rows.append(Row(f"{label}, p99, ms", "beside p99"))
    return rows


def _host_rows() -> list[Row]:
    rows = [Row("no-op, µs; of bytes over TCP", "no-op", "tcp")]
    for megabytes in HOST_MB:
        label = f"{megabytes:g} MB there and back, ms; of bytes over TCP"
        rows.append(Row(label, f"echo {megabytes:g}", "tcp"))
    rows.append(Row("calls a second, in flight; of torch's", "pipelined", "torch"))
    rows.append(Row(f"small asynchronous call beside {BESIDE_MB} MB ones, p50, ms", "beside p50"))
    rows.append(Row("… p99", "beside p99"))
    return rows


def values(rounds: int, seconds: float, networks: str, part: str = "") -> tuple[str, object]:
    """Measure everyone in turn, round by round, all or a part.

    `networks` is why there can be no other hosts; empty if there can.
    """
    tables, data = [], {}
    if part != "hosts":
        words = (str(seconds), part)
        found = take_turns("rpc_payloads", LOCAL, rounds, *words)
        data["local"] = {name: medians(figures) for name, figures in found.items()}
        tables.append(_table("RPC: values, on one host", data["local"], _local_rows()))
    if part in ("", "hosts"):
        title = "RPC: values, between two hosts"
        if networks:
            tables.append(f"{title}: not measured, {networks}")
        else:
            between = _between_hosts(rounds, seconds)
            data["hosts"] = {name: medians(figures) for name, figures in between.items()}
            tables.append(_table(f"{title} by TCP", data["hosts"], _host_rows()))
    return "\n\n".join(tables), data


def _between_hosts(rounds: int, seconds: float) -> Rounds:
    found: Rounds = {name: [] for name in HOSTS}
    for turn in range(rounds):
        for name, subject in HOSTS.items():
            if subject.installed():
                say(f"rpc_hosts, round {turn + 1} of {rounds}: {subject.label}")
                found[name].append(run("rpc_hosts", name, str(seconds), within=UNSHARE))
    return found


def _table(title: str, data: dict[str, Data], rows: list[Row]) -> str:
    cells = []
    for row in rows:
        ours, theirs = _get(data["holdfast"], row.figure), _get(data["torch"], row.figure)
        if ours is None:
            continue
        share = None
        if row.by:
            mine = row.by.startswith("=")
            whole = _get(data["holdfast" if mine else row.by], row.by[1:] if mine else row.figure)
            share = ours / whole if whole else None
        cells.append([row.label, *map(_cell, (ours, theirs, share))])
    return render(title, ["", "holdfast", "torch", "ratio"], cells)


def _cell(value: float | None) -> str:
    return "" if value is None else number(value)


def _get(figures: Data, label: str) -> float | None:
    return None if isinstance(figures, str) else figures.get(label)
