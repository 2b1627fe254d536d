"""Which workers are slower than the others."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

__all__ = ["SLOWER_BY", "find_stragglers"]

SLOWER_BY = 2.0
_WORKERS_MIN = 3  # of two, each may be the slow one


def find_stragglers(rates: Mapping[int, float]) -> dict[int, float]:
    """Return the ranks that are slower than the median by SLOWER_BY: the share of it they reach.

    `rates` are steps a second by rank.
    """
    middle = median(rates.values()) if len(rates) >= _WORKERS_MIN else 0.0
    if middle <= 0:
        return {}
    slow = {rank: rate / middle for rank, rate in rates.items() if rate * SLOWER_BY <= middle}
    return dict(sorted(slow.items()))
