"""How figures grow with the work: the exponent of a power, for each way in which work grows.

A measurement that grows leaves `growth` in its data: for each way, and for each subject, the
figures by count. An exponent of 0 means that the count does not matter, 1 that the figure grows in
proportion to it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from bench.table import number, render

__all__ = ["exponent", "report", "series"]

Series = dict[str, Any]
"""`figures` by count, as text, and their `exponent`."""


def exponent(figures: Mapping[int, float]) -> float | None:
    """Return the slope of a line through the logarithms; None without two counts."""
    if len(figures) < 2 or min(figures.values()) <= 0:
        return None
    counts = [math.log(count) for count in figures]
    return statistics.linear_regression(counts, [math.log(one) for one in figures.values()]).slope


def series(figures: Mapping[int, float]) -> Series:
    """Return figures by count as a measurement leaves them."""
    return {
        "figures": {str(count): figure for count, figure in figures.items()},
        "exponent": exponent(figures),
    }


def report(ways: Mapping[str, Mapping[str, Series]]) -> str:
    """Return a table of all ways and subjects; nothing if there is none."""
    rows = []
    for way, subjects in ways.items():
        for subject, found in subjects.items():
            shown = ", ".join(f"{count}: {number(one)}" for count, one in found["figures"].items())
            power = found["exponent"]
            rows.append([way, subject, shown, "-" if power is None else f"{power:.2f}"])
    return (
        render("growth", ["", "", "figures by count", "exponent"], rows, (0, 1, 2)) if rows else ""
    )
