"""Retry policies: how often to retry, and after how long."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import UsageError

__all__ = ["DELAY_MAX_S", "RetryPolicy"]

DELAY_MAX_S = 3600.0
"""The longest delay, after any number of retries."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retry after `delay_s`, then after `backoff` times that, at most `max_retries` times.

    A try fails when its connection breaks, or after `try_s` seconds if that is given: nothing else
    detects a message that is lost on a connection that stays open.
    """

    max_retries: int = 5
    delay_s: float = 1.0
    backoff: float = 1.5
    try_s: float | None = None

    def __post_init__(self) -> None:
        if type(self.max_retries) is not int:
            raise UsageError(f"max_retries {self.max_retries!r:.40}: must be a whole number")
        for name, value in (("delay_s", self.delay_s), ("backoff", self.backoff)):
            if type(value) not in (int, float):
                raise UsageError(f"{name} {value!r:.40}: must be a number")
        if not self.max_retries >= 0:
            raise UsageError("maxRetries cannot be negative.")
        if not self.backoff >= 1:
            raise UsageError("maxRetries cannot be exponentially decaying.")
        if not self.delay_s >= 0:
            raise UsageError("rpcRetryDuration cannot be negative.")
        if self.try_s is not None and not (type(self.try_s) in (int, float) and self.try_s > 0):
            raise UsageError(f"try_s {self.try_s!r:.40}: must be more than 0 seconds, or None")

    def delay(self, tried: int) -> float | None:
        """Return how long to wait after so many tries, the first included; None to give up."""
        return None if tried > self.max_retries else self._grown(tried)

    def unbounded_delay(self, tried: int) -> float:
        """Return how long to wait if retries never end: at last always the longest delay."""
        return self._grown(min(tried, max(1, self.max_retries)))

    def exhausted(self) -> str:
        """Return the error text for a request whose last try has failed."""
        return (
            "The RPC has not succeeded after the specified number of max retries "
            f"({self.max_retries})."
        )

    def _grown(self, tried: int) -> float:
        try:
            return min(DELAY_MAX_S, float(self.delay_s * self.backoff ** (tried - 1)))
        except OverflowError:
            return DELAY_MAX_S
