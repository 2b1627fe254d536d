"""What a job does, for the person who watches: a line for each node.

On a terminal the lines stay in its last rows and are written over, while everything else scrolls
above them: the workers have the same terminal, and go on writing to it. Elsewhere (a file, a pipe,
a terminal that is too small, or another program's) a plain line is printed for each change of this
node.

    host0  running  round 2  ranks 0-3 of 8  restarts 1/3  rank 5 failed on host1

Nothing here ever fails: what cannot be written is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self, TextIO

from holdfast import env
from holdfast.records import dataclass

__all__ = ["JobView", "Live", "NodeView", "is_for_us"]

_ROWS_MIN, _COLUMNS_MIN = 8, 40
_CLEAR_LINE, _NO_WRAP, _WRAP = "\x1b[2K", "\x1b[?7l", "\x1b[?7h"
_KEEP_PLACE, _TO_PLACE, _WHOLE_SCREEN = "\x1b7", "\x1b8", "\x1b[r"
_DOWN = "\x1bD"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[m"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node, as it is seen. `ranks` are its first and its last, `world_size` those of all."""

    host: str
    state: str
    round: int = 0
    ranks: tuple[int, int] | None = None
    world_size: int = 0
    restarts: int = 0
    max_restarts: int = 0
    reason: str = ""

    def __str__(self) -> str:
        parts = [self.host, self.state]
        if self.round:
            parts.append(f"round {self.round}")
        if self.ranks is not None:
            first, last = self.ranks
            shown = f"rank {first}" if first == last else f"ranks {first}-{last}"
            parts.append(f"{shown} of {self.world_size}")
        if self.restarts or self.max_restarts:
            parts.append(f"restarts {self.restarts}/{self.max_restarts}")
        if self.reason:
            parts.append(self.reason)
        # Other hosts said some of it: it must not play with this terminal.
        return "  ".join("".join(c if c.isprintable() else "?" for c in part) for part in parts)


@dataclass(frozen=True, slots=True)
class JobView:
    """This node of a job, and the others of its round as far as they are known here."""

    here: NodeView
    others: tuple[NodeView, ...] = ()


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

    def __init__(self, stream: TextIO, *, terminal: bool, color: bool = True) -> None:
        self._stream = stream
        self._terminal = terminal
        self._color = color
        self._kept: tuple[int, int] | None = None
        """How many rows the terminal had, and how many of them we keep; None if we keep none."""
        self._said: tuple[str, int, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, view: JobView) -> None:
        """Show how it is now."""
        size = self._size()
        if size is None:
            self._write(self._give_back() + self._news(view))
        else:
            self._write(self._lines(view, *size))

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

    def _news(self, view: JobView) -> str:
        """Return a plain line if this node has changed; the others print their own."""
        here = view.here
        now = (here.state, here.round, here.reason)
        if self._said == now:
            return ""
        self._said = now
        return f"holdfast: {here}\n"

    def _lines(self, view: JobView, rows: int, columns: int) -> str:
        """Return what writes the lines into the last rows, and the cursor back to its place."""
        texts = [str(node) for node in (view.here, *view.others)]
        room = rows // 2
        if len(texts) > room:
            texts[room - 1 :] = [f"and {len(texts) - room + 1} more nodes"]
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
