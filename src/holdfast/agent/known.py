"""What an agent knows of the failures of its round: its own, and those that other nodes tell."""

from __future__ import annotations

from dataclasses import replace

from holdfast.process.outcome.failure import Failure, first_cause

__all__ = ["KnownFailures"]


class KnownFailures:
    """The failures of one round."""

    def __init__(self) -> None:
        self.own: list[Failure] = []
        self.peers: dict[int, tuple[Failure, ...]] = {}
        self.told_all: set[int] = set()
        """The nodes that have said everything."""
        self.counting = False
        """Whether a failure of our own is counted, or will be."""
        self._told = 0  # how many of our own the others have been told of

    def all(self) -> tuple[Failure, ...]:
        """Return all of them, the first cause first."""
        return first_cause([*self.own, *(one for told in self.peers.values() for one in told)])

    def own_first(self) -> Failure | None:
        """Return the first cause if it is one of our own."""
        known = self.all()
        return known[0] if known and any(one is known[0] for one in self.own) else None

    def is_untold_first(self) -> bool:
        """Say whether the first cause is one of our own that the others do not know."""
        known = self.all()
        return any(one is known[0] for one in self.own[self._told :])

    def tell(self) -> tuple[Failure, ...]:
        """Return our own, and note that the others know them."""
        self._told = len(self.own)
        return tuple(self.own)

    def note_repeated(self, first: Failure, times: int) -> None:
        """Note that this failure of our own came so many times in a row."""
        self.own = [replace(one, repeated=times) if one is first else one for one in self.own]

    def others_told_all(self, others: int) -> bool:
        """Say whether so many other nodes have said everything."""
        return len(self.told_all) >= others
