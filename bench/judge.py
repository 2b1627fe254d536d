"""Whether a run meets the aims: one row for each, from the data of the measurements."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.aims import Aim, Place
from bench.table import number, render

__all__ = ["Judged", "judge", "table"]

MET, MISSED, UNKNOWN = "met", "missed", "not measured"


class Judged(NamedTuple):
    """A row of the aims with this run's figures; `share` is what the aim bounds."""

    name: str
    work: str
    unit: str
    holdfast: float | None
    torch: float | None
    share: float | None
    sense: str
    bound: float
    outcome: str
    """`met`, `missed`, or why there is no figure."""

    @property
    def of_aim(self) -> float | None:
        """How many times as good as the aim, 1 being just met."""
        if not self.share:
            return None
        return self.bound / self.share if self.sense == "≤" else self.share / self.bound


def judge(
    aims: Sequence[Aim], data: Mapping[str, Any], lacking: Callable[[tuple[str, ...]], str]
) -> list[Judged]:
    """Return a row for each aim. `lacking` says what the machine lacks of what a row needs."""
    return [_judged(aim, data.get(aim.measurement), lacking(aim.needs)) for aim in aims]


def _judged(aim: Aim, data: Any, missing: str) -> Judged:
    ours, theirs, whole = (
        None if missing or place is None else _find(data, place)
        for place in (aim.ours, aim.torch, aim.by)
    )
    share = ours
    if aim.by is not None:
        share = ours / whole if ours is not None and whole else None
    if missing:
        outcome = missing
    elif whole == 0 and ours:  # such as a thread that made no call
        outcome = MISSED
    elif share is None:
        outcome = UNKNOWN
    else:
        met = share <= aim.bound if aim.sense == "≤" else share >= aim.bound
        outcome = MET if met else MISSED
    return Judged(aim.name, aim.work, aim.unit, ours, theirs, share, aim.sense, aim.bound, outcome)


def _find(data: Any, place: Place) -> float | None:
    """Return the figure at this place, the median of a list; None if there is none."""
    for key in place:
        if not isinstance(data, Mapping) or key not in data:
            return None
        data = data[key]
    if isinstance(data, list):
        return statistics.median(data) if data else None
    return data if isinstance(data, int | float) else None


def table(rows: Sequence[Judged]) -> str:
    """Return the rows as text, and how many of them are met."""
    cells = []
    for row in rows:
        share = "" if row.share == row.holdfast else _cell(row.share)
        figures = [_cell(row.holdfast), _cell(row.torch), share]
        aim = f"{row.sense} {number(row.bound)}"
        cells.append([row.name, row.work, row.unit, *figures, aim, row.outcome])
    head = ["row", "", "", "holdfast", "torch", "ratio", "aim", ""]
    counts = [sum(row.outcome == word for row in rows) for word in (MET, MISSED)]
    rest = len(rows) - sum(counts)
    summary = f"{counts[0]} met, {counts[1]} missed, {rest} without a figure"
    return f"{render('aims', head, cells, (0, 1, 2, 7))}\n{summary}"


def _cell(value: float | None) -> str:
    return "" if value is None else number(value)
