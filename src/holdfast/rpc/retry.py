"""Trying again: how often, and after how long."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import UsageError

__all__ = ["RetryPolicy"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Try again after `delay_s`, then after `backoff` times that, at most `max_retries` times.

    A try counts as failed when its connection breaks, or after `try_s` seconds if that is given: a
    message that is lost on a connection which holds is noticed by nothing else.
    """

    max_retries: int = 5
    delay_s: float = 1.0
    backoff: float = 1.5
    try_s: float | None = None

    def __post_init__(self) -> None:
        if not self.max_retries >= 0:
            raise UsageError("maxRetries cannot be negative.")
        if not self.backoff >= 1:
            raise UsageError("maxRetries cannot be exponentially decaying.")
        if not self.delay_s >= 0:
            raise UsageError("rpcRetryDuration cannot be negative.")
        if self.try_s is not None and not self.try_s > 0:
            raise UsageError(f"try_s {self.try_s!r:.40}: must be more than 0 seconds, or None")

    def delay(self, tried: int) -> float | None:
        """Return how long to wait after so many tries, the first included; None to give up."""
        if tried > self.max_retries:
            return None
        return float(self.delay_s * self.backoff ** (tried - 1))

    def exhausted(self) -> str:
        """Return what to say when the last try has failed."""
        return (
            "The RPC has not succeeded after the specified number of max retries "
            f"({self.max_retries})."
        )
