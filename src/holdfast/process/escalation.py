"""How the workers of one group are stopped: a signal, time to end, KILL, and at last giving up.

Pure: times are given, and what is to be done is returned.

Guarantees
    ES-1  KILL comes only after the grace of a stop, never before, and once for each process.
    ES-2  Every stop ends. Ticked when `next_wake` says, each process has exited or is abandoned
          at most grace + `kill_wait_s` after the stop.
    ES-3  A later stop only shortens: the moment of KILL never moves away.
    ES-4  No signal is sent twice, however often it is asked for: to many programs a second TERM
          or INT means "do not clean up". After KILL nothing is sent at all.
    ES-5  No effect names a process that has exited or is abandoned, or names no process.
"""

from __future__ import annotations

from collections.abc import Iterable
from signal import Signals
from typing import TypeAlias

from holdfast.records import dataclass

__all__ = ["KILL_WAIT_S", "Abandon", "Effect", "Escalation", "Kill", "Send"]

KILL_WAIT_S = 5.0
"""How long a killed process may take to go; one that waits for a device may never."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send this signal to the process groups of these workers."""

    signal: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill the process groups of these workers."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Wait for these workers no longer: not even KILL has ended them."""

    pids: tuple[int, ...]


Effect: TypeAlias = Send | Kill | Abandon


class Escalation:
    """The stopping of the workers with these pids. Nothing happens before the first `stop`."""

    def __init__(self, pids: Iterable[int], kill_wait_s: float = KILL_WAIT_S) -> None:
        self._alive = dict.fromkeys(pids)  # a set that keeps its order
        self._kill_wait_s = kill_wait_s
        self._sent: set[int] = set()
        self._kill_at: float | None = None
        self._abandon_at: float | None = None
        self.abandoned: tuple[int, ...] = ()
        """The processes that were given up."""

    @property
    def asked(self) -> bool:
        """Say whether a stop has been asked for."""
        return self._kill_at is not None

    @property
    def alive(self) -> tuple[int, ...]:
        """The processes that have neither exited nor been abandoned."""
        return tuple(self._alive)

    def stop(self, signal: int, grace_s: float, now: float) -> list[Effect]:
        """Begin to stop, or hurry a stop on; KILL as the signal means no grace."""
        kill_at = now if signal == Signals.SIGKILL else now + max(0.0, grace_s)
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        effects = self.tick(now)
        if self._abandon_at is None and self._alive and signal not in self._sent:
            self._sent.add(signal)
            effects.append(Send(signal, self.alive))
        return effects

    def exited(self, pid: int) -> None:
        """Note that a process has ended."""
        self._alive.pop(pid, None)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        if not self._alive:
            return []
        if self._abandon_at is not None:
            if now < self._abandon_at:
                return []
            self.abandoned = self.alive
            self._alive.clear()
            return [Abandon(self.abandoned)]
        if self._kill_at is None or now < self._kill_at:
            return []
        # From now, not from `kill_at`: after a late tick, too, KILL has its time to work.
        self._abandon_at = now + self._kill_wait_s
        return [Kill(self.alive)]

    def next_wake(self) -> float | None:
        """Return when to tick next; None if there is nothing to wait for but exits and stops."""
        if not self._alive:
            return None
        return self._kill_at if self._abandon_at is None else self._abandon_at
