"""How a leader takes care of its members: which are silent, and which change to ask for."""

from __future__ import annotations

import math
from collections.abc import Collection

from holdfast.store.raft.machine import Raft
from holdfast.store.raft.messages import MemberChange
from holdfast.store.replica.policy import next_change, successors
from holdfast.store.replica.voices import MemberVoices

__all__ = ["BEHIND_MAX", "LOST_S", "SETTLED_S", "MemberCare"]

LOST_S = 5.0
"""After this long without a word of a member, its leader takes it for lost."""

SETTLED_S = 1.0
"""A member that was not heard of for this long is silent: it gets no vote before it speaks again. A
process that joins is told so when no member is silent."""

BEHIND_MAX = 256
"""How many entries a member may be behind, and still count as caught up."""


class MemberCare:
    """What one leader has heard of the members."""

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._heard: dict[int, float] = {}
        # Since when it listens to each member, heard or not.
        self._since: dict[int, float] = {}
        self.voices = MemberVoices()
        self.leaving: set[int] = set()
        """The members that have asked to leave."""

    def heard(self, member: int, now: float) -> None:
        """Note that a member has said something."""
        self._heard[member] = now

    def begin_anew(self) -> None:
        """Forget when members were heard of: this one did not listen, or did not lead."""
        self._heard.clear()
        self._since.clear()

    def wanted_change(self, now: float, hosted: Collection[int] = ()) -> MemberChange | None:
        """Return the change of the members to ask for, if there is one.

        The members that are `hosted` join anew by themselves if they were removed and live.
        """
        dead = self.voices.dead(now)
        lost = [m for m in self._others() if m in dead or now - self._last(m, now) > LOST_S]
        state = self._raft.state
        return next_change(
            state.configuration,
            lost,
            [*self._silent(now), *dead],
            self._caught_up(),
            leader=state.id,
            leaving=self.leaving,
            hosted=hosted,
        )

    def successor(self, now: float) -> int | None:
        """Return the voter to hand over to, if this leader wants to leave and there is one."""
        state = self._raft.state
        if state.id not in self.leaving:
            return None
        away = [*self._silent(now), *self.voices.dead(now)]
        found = successors(state.configuration, away, self.leaving, state.id)
        return next(iter(found), None)

    def removed(self, member: int) -> None:
        """Hear that a process is no member any more."""
        self.leaving.discard(member)
        self.voices.forget(member)

    def is_settled(self, now: float, hosted: Collection[int] = ()) -> bool:
        """Say whether the members are as they should be, and all are there.

        A leader that has just begun does not know of a member that died before: it must have heard.
        """
        is_ready = len(self._caught_up()) == len(self._raft.state.configuration.learners)
        return not self._silent(now) and is_ready and self.wanted_change(now, hosted) is None

    def _others(self) -> list[int]:
        state = self._raft.state
        return [member for member in state.configuration.members if member != state.id]

    def _silent(self, now: float) -> list[int]:
        return [m for m in self._others() if now - self._heard.get(m, -math.inf) > SETTLED_S]

    def _last(self, member: int, now: float) -> float:
        """Return when a member was last heard of, or since when it could have been."""
        return max(self._heard.get(member, -math.inf), self._since.setdefault(member, now))

    def _caught_up(self) -> list[int]:
        state, match_of = self._raft.state, self._raft.match_of
        enough = max(1, state.log.committed - BEHIND_MAX)
        return [m for m in state.configuration.learners if (match_of(m) or 0) >= enough]
