"""How far a run has come: lines on stderr, so that the tables on stdout stay clean."""

from __future__ import annotations

import os
import sys
import time

__all__ = ["say"]

# Of the whole run: the processes that it starts go on counting.
_BEGAN = float(os.environ.setdefault("BENCH_BEGAN", str(time.monotonic())))


def say(words: str) -> None:
    """Print what is measured now, after the minutes and seconds that the run has taken."""
    minutes, seconds = divmod(int(time.monotonic() - _BEGAN), 60)
    print(f"  {minutes:3}:{seconds:02} {words}", file=sys.stderr, flush=True)
