"""The restart budget: after how many failures a job is given up.

Failures are those of the job, wherever they happened: the count and the times come from the store
that all nodes share, so that leaving and coming back gives no node a new budget. Times are wall
clock seconds, since they are compared over hosts.

Guarantees
    RB-1  Without a window a job is restarted after its first `max_restarts` failures, and never
          after a later one.
    RB-2  With a window it is restarted exactly if the failures of the last `window_s` seconds,
          this one included, are not more than `max_restarts`.
    RB-3  The failure that is decided on counts, whatever the clocks of the hosts say; so does one
          whose time lies ahead of `now`.
    RB-4  Where not all times are known and all that are lie in the window, the unknown ones count:
          rather a job that ends than one that restarts for ever.
    RB-5  The reason names the count, the limit and what follows.
"""

from __future__ import annotations

import re

from holdfast.errors import UsageError
from holdfast.records import dataclass

__all__ = ["RestartBudget", "RestartDecision", "parse_restarts"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_RESTARTS = re.compile(r"([0-9]{1,9})(?:/([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]))?")


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """Whether the job goes on after a failure; `left` counts the restarts that then remain."""

    restart: bool
    left: int
    reason: str


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """How many failures are forgiven: in the life of the job, or in each `window_s` seconds."""

    max_restarts: int
    window_s: float | None = None

    def __post_init__(self) -> None:
        if type(self.max_restarts) is not int or self.max_restarts < 0:
            raise UsageError(f"max restarts {self.max_restarts!r:.80}: must be 0, 1, 2 ...")
        window = self.window_s
        if window is not None and not (type(window) in {int, float} and 0 < window < float("inf")):
            raise UsageError(f"window of restarts {window!r:.80}: must be more than 0 seconds")

    def decide(self, count: int, times: tuple[float, ...], now: float) -> RestartDecision:
        """Judge the failure that just happened.

        `count` is how many the job has had, this one included; `times` are the times of the newest
        of them, in any order, and may be fewer.
        """
        if self.window_s is None:
            used, within = count, ""
        else:
            recent = sum(now - time < self.window_s for time in times)
            used = max(recent, 1) if recent < len(times) else max(count, 1)
            within = f", {used} within {self.window_s:g} s"
        restart = used <= self.max_restarts
        does = "restarting" if restart else "giving up"
        return RestartDecision(
            restart=restart,
            left=max(0, self.max_restarts - used),
            reason=f"failure {count} of the job{within}, {self._allowed()}: {does}",
        )

    def _allowed(self) -> str:
        match self.max_restarts:
            case 0:
                return "no restart is allowed"
            case 1:
                return "1 restart is allowed"
            case many:
                return f"{many} restarts are allowed"


def parse_restarts(text: str) -> RestartBudget:
    """Read `3` (in the job's life) or `3/60s`, `3/5m`, `3/1h` (in any such time)."""
    found = _RESTARTS.fullmatch(text)
    if found is None:
        raise UsageError(f"restarts {text!r:.80}: must be like 3, 3/60s, 3/5m or 3/1h")
    number, window, unit = found.groups()
    return RestartBudget(int(number), None if window is None else float(window) * _UNITS[unit])
