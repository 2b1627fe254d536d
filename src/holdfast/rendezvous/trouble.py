"""A store that does not answer: since when, when to try again, and when it is lost.

Pure, as `machine.py` of which it is a part.
"""

from __future__ import annotations

from holdfast.errors import HoldfastError, StoreBusy, StoreFull

__all__ = ["RETRY_MAX_S", "Trouble", "borne_s"]

RETRY_MIN_S, RETRY_MAX_S = 0.05, 1.0


def borne_s(error: HoldfastError, join_s: float) -> float | None:
    """Return for how long a store that fails so is borne with; None for the usual time."""
    match error:
        case StoreBusy():
            return join_s  # the process that holds it up may go on
        case StoreFull():
            return 0.0  # it stays full until room is made in it
        case _:
            return None


class Trouble:
    """What a node knows of its store's silence; silent for a lease, the store is lost."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._since: float | None = None
        self._only_renewals = True  # nothing else has failed
        self._retries = 0
        self._retry_at = 0.0

    @property
    def retry_at(self) -> float | None:
        """When to try again; None if the store answered the last time."""
        return None if self._since is None else self._retry_at

    def answered(self, renewal: bool) -> None:
        """Hear that the store answered, be it by a refusal.

        A renewal that is answered says nothing of other operations: a store that is full renews
        leases, and takes no writes.
        """
        if not renewal or self._only_renewals:
            self.over()

    def over(self) -> None:
        """Forget the silence: the store has answered, or nothing is wanted of it any more."""
        self._since, self._retries, self._only_renewals = None, 0, True

    def failed(self, began: float, now: float, renewal: bool, bear_s: float | None = None) -> bool:
        """Hear that an operation that began then found no answer; say whether the store is lost.

        It is after `bear_s`, else after a lease.
        """
        # Silence begins with the operation. One alone proves nothing: we may have been stopped.
        self._only_renewals = self._only_renewals and renewal
        again = self._since is not None
        since = self._since if self._since is not None else began
        self._since = since
        if again and now - since >= (self._lease_s if bear_s is None else bear_s):
            return True
        self._retry_at = now + min(RETRY_MAX_S, RETRY_MIN_S * 2**self._retries)
        self._retries = min(self._retries + 1, 10)
        return False

    def op_limit_s(self, now: float) -> float:
        """Return how long an operation may take: nothing else is done meanwhile."""
        if self._since is None:
            return self._lease_s
        return min(self._lease_s, max(RETRY_MAX_S, self._since + self._lease_s - now))
