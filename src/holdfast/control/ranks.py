"""Ranks as people write and read them: 0,3,5-7."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from holdfast.errors import UsageError

__all__ = ["check_ranks", "name_ranks", "parse_rank_list"]

_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_MOST = 4096


def parse_rank_list(text: str) -> tuple[int, ...]:
    """Read `0,3,5-7`: each rank once, in order."""
    ranks: set[int] = set()
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise UsageError(f"ranks {text!r:.80}: must be like 0,3,5-7")
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
        if last < first or last - first >= _MOST:
            raise UsageError(f"ranks {text!r:.80}: {part.strip()!r} must go up, by {_MOST} at most")
        ranks.update(range(first, last + 1))
    if len(ranks) > _MOST:
        raise UsageError(f"ranks {text!r:.80}: {len(ranks)} of them, at most {_MOST} are allowed")
    return tuple(sorted(ranks))


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in words: `rank 3`, `ranks 0-2,5`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {shown}" if len(runs) == 1 and runs[0][0] == runs[0][1] else f"ranks {shown}"


def check_ranks(wanted: Iterable[int], there: Collection[int]) -> None:
    """Raise UsageError if a rank is not there; it says which are."""
    missing = [rank for rank in wanted if rank not in there]
    if missing:
        here = f"here are {name_ranks(there)}" if there else "no worker runs here now"
        raise UsageError(f"{name_ranks(missing)}: not on this machine; {here}")
