"""The failure of a round that a node reports, until it is counted (ND-4).

Pure, as `machine.py` of which it is a part.
"""

from __future__ import annotations

from holdfast.rendezvous.effects import Counted
from holdfast.rendezvous.model import Failures, Keys
from holdfast.store.ops import CompareSet, Get, Guarded, Swap

__all__ = ["Account"]


class Account:
    """What a node has to report."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        # The round whose failure is to be counted, and when it happened by the wall clock.
        self._report: tuple[int, float] | None = None

    def report(self, number: int, wall: float) -> None:
        """Take a failure of a round; `wall` is since 1970."""
        self._report = (number, wall)

    def next_op(
        self, number: int, lasts: bytes | None, raw: bytes | None
    ) -> Get | Guarded[Swap] | Counted | None:
        """Return what counts the failure, the answer if it is counted, None if there is none.

        The node was last in round `number`; `lasts` is its record while that lasts. `raw` is what
        is known of the job's failures.
        """
        if self._report is None:
            return None
        reported, wall = self._report
        if lasts is None or reported != number:
            return Get(self._keys.failures)  # nothing to count: say how many there are
        known = Failures() if raw is None else Failures.decode(raw)
        if known.round >= number:
            self._report = None
            return Counted(number, known)
        op = CompareSet(self._keys.failures, raw, known.plus(number, wall).encode())
        return Guarded(self._keys.round, lasts, op)

    def read(self, known: Failures, number: int, lasts: bytes | None) -> Counted | None:
        """Hear how many failures there are; return the answer to a report that comes too late.

        A leader reads them too: that is no answer to a report that is still to count.
        """
        if self._report is None or (lasts is not None and self._report[0] == number):
            return None
        reported, self._report = self._report[0], None
        return Counted(reported, known)
