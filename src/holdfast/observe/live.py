"""What a job does, for the person who watches: a line for each node.

On a terminal the lines of the nodes stay in its last rows and are written over, while everything
else scrolls above them: the workers have the same terminal, and go on writing to it. What happened
(a round, a restart, nodes that come and go) gets a line of its own there, with its time, which
stays in the scrollback. Elsewhere (a file, a pipe, a terminal that is too small, or another
program's) these lines are all that is printed. `lines.py` decides which there are.

Nothing here ever fails: what cannot be written is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self, TextIO

from holdfast import env
from holdfast.clock import SYSTEM_CLOCK, Clock, iso_time
from holdfast.observe.lines import JobView, LineLog

__all__ = ["Live", "is_for_us"]

_ROWS_MIN, _COLUMNS_MIN = 8, 40
_CLEAR_LINE, _NO_WRAP, _WRAP = "\x1b[2K", "\x1b[?7l", "\x1b[?7h"
_KEEP_PLACE, _TO_PLACE, _WHOLE_SCREEN = "\x1b7", "\x1b8", "\x1b[r"
_DOWN = "\x1bD"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[m"


def is_for_us(stream: TextIO, variables: Mapping[str, str]) -> bool:
    """Say whether a stream is a terminal whose last rows are ours to use."""
    nested = env.GROUP in variables  # a worker of another job: the rows are that one's
    if nested or variables.get("TERM", "dumb") in {"", "dumb"}:
        return False
    try:
        terminal = stream.fileno()
        return stream.isatty() and os.tcgetpgrp(terminal) == os.getpgrp()
    except (OSError, ValueError):  # none, or not the one that we are controlled from
        return False


class Live:
    """Shows a job on a stream, until closed. Not for several threads."""

    def __init__(
        self,
        stream: TextIO,
        *,
        terminal: bool,
        color: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._stream = stream
        self._terminal = terminal
        self._color = color
        self._clock = clock
        self._log = LineLog(redrawn=terminal)
        self._kept: tuple[int, int] | None = None
        """How many rows the terminal had, and how many of them we keep; None if we keep none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, view: JobView) -> None:
        """Show how it is now."""
        size = self._size()
        line = self._log.news(view, self._clock.monotonic())
        news = f"holdfast: {iso_time(self._clock.wall())}  {line}\n" if line else ""
        if size is None:
            self._write(self._give_back() + news)
        else:
            self._write(news + self._lines(view, *size))

    def close(self) -> None:
        """Give the rows back. Idempotent."""
        self._write(self._give_back())

    def _size(self) -> tuple[int, int] | None:
        """Return the terminal's rows and columns; None if it is none, or too small."""
        if not self._terminal:
            return None
        try:
            columns, rows = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return None
        return (rows, columns) if rows >= _ROWS_MIN and columns >= _COLUMNS_MIN else None

    def _lines(self, view: JobView, rows: int, columns: int) -> str:
        """Return what writes the lines into the last rows, and the cursor back to its place."""
        texts = [str(view.here)]
        if view.others:
            texts.append(f"and {view.others} more node{'s' * (view.others > 1)}")
        out = ""
        if self._kept != (rows, len(texts)):
            out = self._give_back() + self._keep(rows, len(texts))
        out += _KEEP_PLACE + _NO_WRAP
        for row, text in enumerate(texts, rows - len(texts) + 1):
            out += f"\x1b[{row};1H{_CLEAR_LINE}{self._bold(text[:columns])}"
        return out + _WRAP + _TO_PLACE

    def _bold(self, text: str) -> str:
        return f"{_BOLD}{text}{_PLAIN}" if self._color else text

    def _keep(self, rows: int, count: int) -> str:
        """Return what makes room for so many rows, and lets the others scroll alone."""
        self._kept = (rows, count)
        room = _DOWN * count + f"\x1b[{count}A"  # the column stays: a line may be half written
        return f"{room}{_KEEP_PLACE}\x1b[1;{rows - count}r{_TO_PLACE}"

    def _give_back(self) -> str:
        """Return what empties the rows that we kept, and lets everything scroll again."""
        if self._kept is None:
            return ""
        (rows, count), self._kept = self._kept, None
        emptied = "".join(
            f"\x1b[{row};1H{_CLEAR_LINE}" for row in range(rows - count + 1, rows + 1)
        )
        return f"{_KEEP_PLACE}{_WHOLE_SCREEN}{emptied}{_TO_PLACE}"

    def _write(self, text: str) -> None:
        if not text:
            return
        try:
            self._stream.write(text)  # in one piece: workers write to the terminal, too
            self._stream.flush()
        except (OSError, ValueError):  # gone: the stream has no reader any more
            pass
