"""The store's time: it moves with the log, at the pace of the clock of the member that leads."""

from __future__ import annotations

__all__ = ["StoreTime"]


class StoreTime:
    """The time that the log has reached, and, for a leader, the time that it is now."""

    def __init__(self, reached: float) -> None:
        self.reached = reached
        """The latest moment of all batches that were applied."""
        self._base: tuple[float, float] | None = None

    def reach(self, at: float) -> float:
        """Apply a batch's moment; return the time that it is now: never less than before."""
        self.reached = max(self.reached, at)
        return self.reached

    def lead(self, now: float) -> None:
        """Let time pass from here on, at the pace of this member's clock."""
        self._base = (self.reached, now)

    def follow(self) -> None:
        """Leave it to another member to say what time it is."""
        self._base = None

    @property
    def passes(self) -> bool:
        """Say whether time passes by this member's clock."""
        return self._base is not None

    def at(self, now: float) -> float:
        """Return the store's time; without a clock that counts, it stands still."""
        if self._base is None:
            return self.reached
        reached, since = self._base
        return reached + now - since
