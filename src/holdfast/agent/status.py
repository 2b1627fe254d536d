"""What an agent does, as people and probes are told."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.attempt import Membership
from holdfast.agent.effects import Place
from holdfast.agent.outcome import Ending
from holdfast.agent.restarts import Restarts
from holdfast.agent.terms import State
from holdfast.records import dataclass
from holdfast.rendezvous.model import Progress

__all__ = ["AgentStatus", "WaitForRound"]

EXPLAIN_AFTER_S = 5.0
"""A wait for a round that is shorter than this needs no words."""


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What the agent does: `turned_at` is when its loop last turned, on the monotonic clock.

    While it waits for a round, `waiting` says for what, and `left_s` how much longer. `ending` is
    how it ended, once it has. `logs` is the folder of the logs, if it outlives the agent.
    """

    state: State
    reason: str
    place: Place | None
    membership: Membership | None
    turned_at: float
    ending: Ending | None = None
    waiting: str = ""
    left_s: float | None = None
    restarts: Restarts = Restarts()
    logs: Path | None = None


class WaitForRound:
    """A wait for a round. Any thread may ask for it."""

    def __init__(self) -> None:
        self._since = 0.0
        self._limit_s: float | None = None
        self._heard: tuple[Progress | None, float] = (None, 0.0)

    def begin(self, now: float, limit_s: float | None) -> None:
        """Note that a wait begins, which may take so long; None if that is not known."""
        self._since, self._limit_s, self._heard = now, limit_s, (None, now)

    def explain(
        self, progress: Progress | None, last_round: int, now: float
    ) -> tuple[str, float | None]:
        """Say what is waited for, and how much longer; nothing at first, nor if it is not known."""
        if now < self._since + EXPLAIN_AFTER_S:
            return "", None
        left_s = None if self._limit_s is None else max(0.0, self._since + self._limit_s - now)
        if progress is None or progress.number <= last_round:
            return "", left_s  # no node has told of the next round yet
        heard, heard_at = self._heard
        if progress is not heard:
            self._heard, heard_at = (progress, now), now
        if progress.left_s is not None:
            left_s = max(0.0, heard_at + progress.left_s - now)
        return progress.reason, left_s
