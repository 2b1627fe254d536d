"""Figures of RPC as tables."""

from __future__ import annotations

from collections.abc import Sequence

from bench.rpc_caller import BLOCKING_MS, CALLERS, IN_FLIGHT
from bench.rpc_subjects import SUBJECTS
from bench.table import number, render

__all__ = ["FAILED", "MISSING", "Data", "report"]

Data = dict[str, float] | str
"""Figures by name, or why there are none."""
MISSING = "not installed"
FAILED = "failed"

Column = tuple[str, str, str]
"""Its head, the figure, and whose it is divided by, if any."""
TITLES = {
    "echo": "there and back; of two copies' time",
    "argument": "there, as an argument; of one copy's time",
    "result": "back, as a result; of one copy's time",
}


def report(data: dict[str, Data], idle: dict[str, Data], megabytes: tuple[int, ...]) -> str:
    """Return all tables."""
    small: list[Column] = [
        ("no-op p50", "no-op p50", ""),
        ("p99", "no-op p99", ""),
        ("of the limit", "no-op p50", "bytes"),
        ("of torch's", "no-op p50", "torch"),
        ("matrix p50", "matrix p50", ""),
        ("p99", "matrix p99", ""),
        ("of torch's", "matrix p50", "torch"),
    ]
    many: list[Column] = [
        (f"{IN_FLIGHT} in flight", "pipelined", ""),
        ("of torch's", "pipelined", "torch"),
    ]
    for count in CALLERS:
        many.append((f"{count} threads" if count > 1 else "1 thread", f"callers {count}", ""))
    many.append(("of torch's", f"callers {CALLERS[-1]}", "torch"))
    blocking: list[Column] = []
    for each_ms in BLOCKING_MS:
        label = f"blocking {each_ms}"
        blocking += [(f"{each_ms} ms", label, ""), ("of torch's", label, "torch")]
    tables = [
        _table("RPC: one call, of nothing and to echo a 2 by 2 matrix, µs", data, small),
        _table("RPC: calls a second", data, many),
        _table(f"RPC: calls a second whose handlers block, {IN_FLIGHT} in flight", data, blocking),
    ]
    for way, words in TITLES.items():
        large: list[Column] = []
        for size in megabytes:
            large += [(f"{size} MB", f"{way} {size}", ""), ("of copies", f"{way} {size}", "copies")]
        tables.append(_table(f"RPC: large arrays {words}, ms", data, large))
    costs: list[Column] = [(what, what, "") for what in ("bytes", "descriptors", "threads")]
    tables.append(_table("RPC: what each connected idle peer costs", idle, costs))
    return "\n\n".join(filter(None, tables))


def _table(title: str, data: dict[str, Data], columns: Sequence[Column]) -> str:
    """Return a table of the subjects that have any of the figures, or should; "" if none has."""
    rows = []
    for name, figures in data.items():
        label = SUBJECTS[name].label
        if isinstance(figures, str):
            rows.append([label, figures, *[""] * (len(columns) - 1)])
        elif any(figure in figures for _, figure, _ in columns):
            cells = [_cell(_share(data, name, figure, by)) for _, figure, by in columns]
            rows.append([label, *cells])
    if all(isinstance(figures, str) for figures in data.values()) or not rows:
        return ""
    return render(title, ["", *(head for head, _, _ in columns)], rows)


def _share(data: dict[str, Data], name: str, figure: str, by: str) -> float | None:
    """Return a figure, divided by another's if one is named; None where there is none."""
    value = _get(data, name, figure)
    if not by or value is None:
        return value
    whole = _get(data, by, figure)
    return value / whole if whole else None


def _get(data: dict[str, Data], name: str, figure: str) -> float | None:
    figures = data[name]
    return None if isinstance(figures, str) else figures.get(figure)


def _cell(value: float | None) -> str:
    return "" if value is None else number(value)
