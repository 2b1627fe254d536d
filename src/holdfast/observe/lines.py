"""What a job does, in lines: one for this node as it is now, and one for each thing that happened.

    2026-03-01T09:14:07+01:00  host0  running  round 2  ranks 0-3 of 8  2 nodes, 3 before

A line has the time, the node, one state and one reason. A reason that the line before gave is not
given again.
"""

from __future__ import annotations

from holdfast.records import dataclass

__all__ = ["JobView", "LineLog", "NodeView", "duration"]

WAITING_EVERY_S = 5.0
"""How often a line may say what is waited for, where lines cannot be written over."""

_UNTOLD = ("gathering", "ended")  # the last line of the job says how it ended
_NEXT_ROUND = "waiting for the next round"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node, as it is seen. `ranks` are its first and its last, `world_size` those of all.

    `waiting` is what it waits for, `left_s` how much longer.
    """

    host: str
    state: str
    round: int = 0
    ranks: tuple[int, int] | None = None
    world_size: int = 0
    restarts: int = 0
    max_restarts: int = 0
    reason: str = ""
    waiting: str = ""
    left_s: float | None = None

    def __str__(self) -> str:
        return self.line(self.reason)

    def line(self, reason: str) -> str:
        """Return the node's line, with this reason."""
        parts = [self.host, self.state]
        if self.round:
            parts.append(f"round {self.round}")
        if self.ranks is not None:
            first, last = self.ranks
            shown = f"rank {first}" if first == last else f"ranks {first}-{last}"
            parts.append(f"{shown} of {self.world_size}")
        if self.restarts or self.max_restarts:
            parts.append(f"restarts {self.restarts}/{self.max_restarts}")
        why = "; ".join(filter(None, (self.waiting, reason)))
        if self.left_s is not None:
            why = f"{why}, {self.left_s:.0f} s left" if why else f"{self.left_s:.0f} s left"
        if why:
            parts.append(why)
        # Other hosts said some of it: it must not play with this terminal.
        return "  ".join("".join(c if c.isprintable() else "?" for c in part) for part in parts)


@dataclass(frozen=True, slots=True)
class JobView:
    """This node of a job, and how many others are in its round."""

    here: NodeView
    others: int = 0


class LineLog:
    """Decides which lines are written for good, from one view of the job after another.

    `redrawn` says that the nodes' own lines stay in sight and are written over: what is waited for
    stands there, and is written nowhere else.
    """

    def __init__(self, *, redrawn: bool) -> None:
        self._redrawn = redrawn
        self._said: tuple[str, int, str] | None = None
        self._reason = ""
        self._waiting = ""
        self._waiting_at = 0.0
        self._round = 0
        self._nodes = 0

    def news(self, view: JobView, now: float) -> str:
        """Return the line to write for good, or nothing."""
        here = view.here
        if here.state in _UNTOLD:
            return ""
        told = (here.state, here.round, here.reason)
        is_new = told != self._said
        if not is_new and (self._redrawn or not self._waits_anew(here, now)):
            return ""
        self._said, self._waiting, self._waiting_at = told, here.waiting, now
        reason = self._shorter(here) if is_new else here.reason
        self._reason = here.reason
        changes = self._changes(view)
        return here.line("; ".join(filter(None, (reason, changes))))

    def _waits_anew(self, here: NodeView, now: float) -> bool:
        changed = here.waiting not in ("", self._waiting)
        return changed and now >= self._waiting_at + WAITING_EVERY_S

    def _shorter(self, here: NodeView) -> str:
        """Return the reason without what the last line said already."""
        if not self._reason or not here.reason.startswith(self._reason):
            return here.reason
        rest = here.reason.removeprefix(self._reason).lstrip("; ")
        return rest or (_NEXT_ROUND if here.state == "joining" else here.reason)

    def _changes(self, view: JobView) -> str:
        """Say how many nodes there are, if this is another round of another size than before."""
        if not view.here.round or view.here.round == self._round:
            return ""
        before, self._nodes = self._nodes, 1 + view.others
        self._round = view.here.round
        if before in (0, self._nodes):
            return ""
        return f"{self._nodes} node{'s' * (self._nodes > 1)}, {before} before"


def duration(seconds: float) -> str:
    """Return a duration as people say it: 6.0 s, 12 min 5 s, 3 h 4 min, 2 d 5 h."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if not hours:
        return f"{minutes} min {whole % 60} s"
    return f"{hours} h {minutes % 60} min" if not days else f"{days} d {hours % 24} h"
