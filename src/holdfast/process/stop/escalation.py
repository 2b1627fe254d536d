"""How the workers of one group are stopped: a signal, time to end, KILL, and at last giving up.

Before KILL, workers that still run are asked where they are: for their stacks.

Pure: times are given, and what is to be done is returned.

Guarantees
    ES-1  KILL comes only after the grace of a stop, never before, and once for each process.
    ES-2  Every stop ends. Ticked when `next_wake` says, each process has exited or is abandoned
          at most grace + `kill_wait_s` after the stop; one that is known to be ending then, at
          most grace + ENDING_WAIT_S after it.
    ES-3  A later stop only shortens: the moment of KILL never moves away.
    ES-4  No signal is sent twice, however often it is asked for: to many programs a second TERM
          or INT means "do not clean up". After KILL nothing is sent at all.
    ES-5  No effect names a process that has exited or is abandoned, or names no process.
    ES-6  Workers are asked for their stacks once, at most ASK_BEFORE_S before KILL and not in the
          first half of the grace. KILL is never later for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from signal import Signals
from typing import TypeAlias

from holdfast.records import dataclass

__all__ = [
    "ASK_BEFORE_S",
    "ENDING_WAIT_S",
    "KILL_WAIT_S",
    "Abandon",
    "Ask",
    "Effect",
    "Escalation",
    "Kill",
    "SendSignal",
]

ASK_BEFORE_S = 0.5
"""How long a worker has to write its stacks before it is killed."""
KILL_WAIT_S = 5.0
"""How long a killed process may take to begin to end; one that waits for a device may never."""
ENDING_WAIT_S = 120.0
"""How long it may take in all if it does: memory that a device used is freed at 6 GB a second."""


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Send this signal to the process groups of these workers."""

    signal: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask these workers for their stacks: they will soon be killed."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill the process groups of these workers."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Wait for these workers no longer: not even KILL has ended them."""

    pids: tuple[int, ...]


Effect: TypeAlias = SendSignal | Ask | Kill | Abandon


class Escalation:
    """The stopping of the workers with these pids. Nothing happens before the first `stop`."""

    def __init__(self, pids: Iterable[int], kill_wait_s: float = KILL_WAIT_S) -> None:
        self._alive = dict.fromkeys(pids)  # a set that keeps its order
        self._kill_wait_s = kill_wait_s
        self._sent: set[int] = set()
        self._ask_at = math.inf
        self._asked = False
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._abandon_at = math.inf
        self._ending: set[int] = set()
        self.abandoned: tuple[int, ...] = ()
        """The processes that were given up."""

    @property
    def alive(self) -> tuple[int, ...]:
        """The processes that have neither exited nor been abandoned."""
        return tuple(self._alive)

    def stop(self, signal: int, grace_s: float, now: float) -> list[Effect]:
        """Begin to stop, or hurry a stop on; KILL as the signal means no grace."""
        kill_at = now if signal == Signals.SIGKILL else now + max(0.0, grace_s)
        self._ask_at = min(self._ask_at, max(kill_at - ASK_BEFORE_S, (now + kill_at) / 2))
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        effects = self.tick(now)
        if self._killed_at is None and self._alive and signal not in self._sent:
            self._sent.add(signal)
            effects.append(SendSignal(signal, self.alive))
        return effects

    def exited(self, pid: int) -> None:
        """Note that a process has ended."""
        self._alive.pop(pid, None)

    def ending(self, pid: int) -> None:
        """Note that a process is exiting: it only needs time."""
        self._ending.add(pid)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        if not self._alive:
            return []
        if self._killed_at is not None:
            return self._abandon(now, self._killed_at + ENDING_WAIT_S)
        if self._kill_at is None or now < self._ask_at:
            return []
        if now < self._kill_at:
            asked, self._asked = self._asked, True
            return [] if asked else [Ask(self.alive)]
        # From now, not from `kill_at`: after a late tick, too, KILL has its time to work.
        self._killed_at, self._abandon_at = now, now + self._kill_wait_s
        return [Kill(self.alive)]

    def _abandon(self, now: float, last_at: float) -> list[Effect]:
        if now < self._abandon_at:
            return []
        self._abandon_at = last_at
        stuck = tuple(pid for pid in self._alive if now >= last_at or pid not in self._ending)
        for pid in stuck:
            del self._alive[pid]
        self.abandoned += stuck
        return [Abandon(stuck)] if stuck else []

    def next_wake(self) -> float | None:
        """Return when to tick next; None if there is nothing to wait for but exits and stops."""
        if not self._alive:
            return None
        if self._killed_at is not None:
            return self._abandon_at
        return self._kill_at if self._asked or self._kill_at is None else self._ask_at
