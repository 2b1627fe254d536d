"""Whether this agent hosts a member of its run's store, as a machine.

Rule 1: which agents become members, when they ask, ask again and stop asking is decided here. What
    becomes of the members then (learners, voters, removal) is decided by the store.
Rule 2: this file does no I/O and reads no clock. The shell (`store_host.py`) asks `next_step()`,
    does it, and tells what came of it.

    APART ──(its turn)──▶ JOINING ──▶ MEMBER
      ▲                      │           │
      └──(refused, failed)───┴───────────┘ (dismissed)

The node that binds the endpoint founds the store, and is its first member. Every other agent of the
run asks to be one as well, as soon as it has reached the store: first come, first served. A store
that is hosted like this has HOSTED_MAX members at most; the other agents are clients. A run of one
node has no other agent, so that nothing happens here.

Guarantees
    HO-1  An agent asks as soon as it takes part, and one that was dismissed asks anew at once, as a
          new member.
    HO-2  An agent that was refused, because the store has all its members, asks again only when it
          hears of fewer, and not within AGAIN_S.
    HO-3  An agent that failed to join asks again after pauses that double, up to PAUSE_MAX_S.
    HO-4  An agent that leaves never asks again.
    HO-5  The first round of an agent begins after its first request has come to an end, so that a
          round's members are members of the store; but it waits no longer than SETTLE_WITHIN_S.
"""

from __future__ import annotations

from enum import Enum, auto

from holdfast.records import dataclass

__all__ = ["HOSTED_MAX", "SETTLE_WITHIN_S", "AskToJoin", "Hosting", "HostingStep", "WaitUntil"]

HOSTED_MAX = 5
AGAIN_S = 5.0
PAUSE_MAX_S = 60.0
SETTLE_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class AskToJoin:
    """Ask the members to be one of them."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Do nothing until this moment, or until something happens if it is None."""

    at: float | None


HostingStep = AskToJoin | WaitUntil


class _HostingState(Enum):
    APART = auto()
    JOINING = auto()
    MEMBER = auto()
    LEAVING = auto()


class Hosting:
    """The machine of one agent."""

    def __init__(self, *, founder: bool) -> None:
        self._state = _HostingState.MEMBER if founder else _HostingState.APART
        self._again_at = 0.0
        self._pause_s = AGAIN_S
        self._full = False  # refused, because there were members enough
        self.settled = founder
        """Whether the first request has come to an end (HO-5)."""

    @property
    def is_member(self) -> bool:
        """Say whether this agent hosts a member, as far as it knows."""
        return self._state is _HostingState.MEMBER

    @property
    def is_leaving(self) -> bool:
        """Say whether this agent was told to leave."""
        return self._state is _HostingState.LEAVING

    def next_step(self, members: int, now: float) -> HostingStep:
        """Say what to do now; `members` is how many the store has, as far as this agent knows."""
        if self._state is not _HostingState.APART:
            return WaitUntil(None)
        if now < self._again_at:
            return WaitUntil(self._again_at)
        if self._full and members >= HOSTED_MAX:
            self._again_at = now + AGAIN_S  # HO-2
            return WaitUntil(self._again_at)
        self._state = _HostingState.JOINING
        return AskToJoin()

    def joined(self) -> None:
        """Hear that this agent hosts a member now."""
        self._ended(_HostingState.MEMBER)
        self._pause_s = AGAIN_S

    def refused(self, now: float) -> None:
        """Hear that the store has all its members."""
        self._ended(_HostingState.APART)
        self._full = True
        self._again_at = now + AGAIN_S

    def failed(self, now: float) -> None:
        """Hear that this agent could not join."""
        self._ended(_HostingState.APART)
        self._again_at = now + self._pause_s  # HO-3
        self._pause_s = min(PAUSE_MAX_S, 2 * self._pause_s)

    def dismissed(self) -> None:
        """Hear that this agent is no member any more, though it did not leave."""
        if self._state is _HostingState.MEMBER:
            self._state = _HostingState.APART
            self._again_at = 0.0  # HO-1
            self._full = False

    def leave(self) -> None:
        """Hear that this agent leaves (HO-4)."""
        self._state = _HostingState.LEAVING
        self.settled = True

    def _ended(self, state: _HostingState) -> None:
        self.settled = True
        if self._state is _HostingState.JOINING:
            self._state = state
