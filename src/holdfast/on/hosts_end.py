"""How a job on several hosts ends: from the ends of its hosts to what is done and the exit code.

Guarantees
    OH-1  A job that goes on without a host ends as its last hosts end.
    OH-2  If too few hosts are left for a round, the others are told to end: at once if the host
          that is gone can never have taken part, else after a time in which they may end
          by themselves and tell the first cause.
    OH-3  The exit code is that of the host that ended first with one that is not 0; that of a
          signal, if a user has sent one.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import Unavailable, exit_code
from holdfast.records import dataclass

__all__ = ["CLOSE_AFTER_S", "GRACE_S", "LOST", "HostsEnd", "Todo"]

LOST = 255
"""What ssh ends with if it has no connection, and if a signal has killed the agent."""
GRACE_S = 30.0
"""How long hosts may take to end by themselves once too few of them are left."""
CLOSE_AFTER_S = 120.0
"""How long they may take once they were told to."""

_NEVER_TOOK_PART = (2, 126, 127, LOST)
_UNAVAILABLE = exit_code(Unavailable(""))


@dataclass(frozen=True, slots=True)
class Todo:
    """What to do now: lines to print, whether to tell the rest to end, and to leave them."""

    lines: tuple[str, ...] = ()
    stop: bool = False
    close: bool = False


class HostsEnd:
    """Decides. `fewest` is the number of hosts that a round needs."""

    def __init__(self, hosts: Sequence[str], fewest: int) -> None:
        self._hosts = tuple(hosts)
        self._fewest = fewest
        self._codes: dict[int, int] = {}  # in the order in which hosts ended
        self._signal = 0
        self._stop_at: float | None = None
        self._close_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether every host has ended."""
        return len(self._codes) == len(self._hosts)

    def signalled(self, number: int) -> None:
        """Hear of a signal, which every host has been told of."""
        self._signal = self._signal or number

    def ended(self, host: int, status: int, now: float) -> Todo:
        """Hear that the ssh of a host has ended."""
        code = _UNAVAILABLE if status == LOST else status
        self._codes[host] = code
        left = len(self._hosts) - len(self._codes)
        if status == 0 or self._signal:
            return Todo()
        name, lines = self._hosts[host], []
        if status == LOST:
            lines.append(f"{name}: the connection is lost, or its agent was killed")
        elif status in (126, 127):
            lines.append(f"{name}: the command could not be run there (exit code {status})")
        done = sum(not one for one in self._codes.values())
        if 0 < left < self._fewest - done and self._stop_at is None:
            self._stop_at = now if status in _NEVER_TOOK_PART else now + GRACE_S
        return Todo(tuple(lines))

    def next_at(self) -> float | None:
        """Return when `passed` has something to say, if nothing happens before."""
        return self._stop_at if self._close_at is None else self._close_at

    def passed(self, now: float) -> Todo:
        """Hear that time has passed."""
        if self._close_at is not None:
            return Todo(close=now >= self._close_at)
        if self._stop_at is None or now < self._stop_at:
            return Todo()
        self._close_at = now + CLOSE_AFTER_S
        left = len(self._hosts) - len(self._codes)
        told = f"{left} of at least {self._fewest} hosts are left: the job ends"
        return Todo((told,), stop=True)

    def code(self) -> int:
        """Return the exit code, once all have ended."""
        codes = list(self._codes.values())
        if codes.count(0) == len(codes):
            return 0
        if self._signal:
            return 128 + self._signal
        if codes.count(0) >= self._fewest:
            return 0
        return next(code for code in codes if code)
