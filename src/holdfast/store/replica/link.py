"""The connection from one member to another as a machine: when it is made, asked, and given up.

A message that finds no connection is lost, which Raft bears; it also makes the connection wanted. A
connection on which nothing passes any more does not end by itself, so the other end is asked for a
sign of life from time to time.
"""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["ASK_EVERY_S", "DIAL_WITHIN_S", "SILENCE_S", "LinkState", "LinkStep", "MemberLink"]

ASK_EVERY_S = 0.5
SILENCE_S = 1.5
DIAL_WITHIN_S = 2.0
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 1.0


class LinkState(Enum):
    """Whether there is a connection."""

    APART = auto()
    DIALING = auto()
    OPEN = auto()


class LinkStep(Enum):
    """What to do now."""

    DIAL = auto()
    ASK = auto()
    CLOSE = auto()


class MemberLink:
    """One outgoing connection. The shell calls `tick` often and does what it says."""

    def __init__(self) -> None:
        self.state = LinkState.APART
        self._wanted = False
        self._next = 0.0  # when to dial again, at the earliest; or to ask again
        self._pause = _PAUSE_MIN_S
        self._heard_at = 0.0

    def want(self) -> bool:
        """Ask for a connection; say whether there is one."""
        self._wanted = True
        return self.state is LinkState.OPEN

    def opened(self, now: float) -> None:
        """Hear that the connection is there."""
        self.state = LinkState.OPEN
        self._heard_at, self._next = now, now + ASK_EVERY_S

    def heard(self, now: float) -> None:
        """Hear a sign of life."""
        self._heard_at = now
        self._pause = _PAUSE_MIN_S

    def closed(self, now: float) -> None:
        """Hear that the connection is over, or could not be made."""
        self.state = LinkState.APART
        self._wanted = False
        self._next = now + self._pause
        self._pause = min(_PAUSE_MAX_S, 2 * self._pause)

    def tick(self, now: float) -> LinkStep | None:
        """Let time pass, and return what to do. After CLOSE, `closed` is called as always."""
        match self.state:
            case LinkState.APART if self._wanted and now >= self._next:
                self.state = LinkState.DIALING
                self._heard_at = now
                return LinkStep.DIAL
            case LinkState.DIALING if now - self._heard_at > 4 * DIAL_WITHIN_S:
                self.closed(now)  # whatever became of that attempt
                return None
            case LinkState.OPEN if now - self._heard_at > SILENCE_S:
                return LinkStep.CLOSE
            case LinkState.OPEN if now >= self._next:
                self._next = now + ASK_EVERY_S
                return LinkStep.ASK
            case _:
                return None
