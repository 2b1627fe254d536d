"""A stall in words: which worker is to blame, and where all of them are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.control.merged_stacks import StackClass, merge_stacks
from holdfast.control.ranks import name_ranks
from holdfast.records import dataclass

__all__ = ["StallReport", "report_stall"]


@dataclass(frozen=True, slots=True)
class StallReport:
    """What is told of a stall: the worker that differs, a sentence, and the merged stacks."""

    rank: int
    message: str
    stack: str


def report_stall(
    stalled: Mapping[int, float], stacks: Sequence[dict[str, Any]], stall_after_s: float
) -> StallReport:
    """Tell of workers that stalled, by rank and for how long, from the stacks of all of them.

    The worker to blame is the one whose place fewest share, if there are several places; else the
    one that stalled first.
    """
    classes = merge_stacks(stacks)
    lone = [one for one in classes[1:] if any(rank in stalled for rank in one.ranks)]
    suspects = [rank for rank in stalled if not lone or rank in lone[-1].ranks]
    rank = min(suspects, key=lambda one: (-stalled[one], one))
    places = "; ".join(f"{name_ranks(one.ranks)}: {one.summary}" for one in classes)
    where = f"; {places}" if places else ""
    message = f"no progress for {max(stall_after_s, stalled[rank]):.0f} s{where}"
    return StallReport(rank, message, "\n".join(_lines(classes)))


def _lines(classes: Sequence[StackClass]) -> list[str]:
    lines = []
    for one in classes:
        lines += [f"{name_ranks(one.ranks)}: {one.summary}", *(f"  {line}" for line in one.lines)]
    return lines
