"""The lease of one node: when to renew it, and until when it is surely held.

Pure, as `machine.py` of which it is a part.

A store counts a lease from the moment at which it handled the grant or the newest renewal. That
moment lies after the node sent the request, so the node counts from the sending. It does not count
from the answer, and not from the first renewal that failed: both are later than the store's moment.

Guarantees
    HL-1  `LeaseHeld.kill_at` of the newest renewal that was answered lies MARGIN of a lease before
          the earliest moment at which the store can let that lease end; `LeaseHeld.stop_at` lies
          earlier by the same. The margin covers a clock that runs slower than the store's, and the
          time that a killed process takes to end.
    HL-2  No other operation keeps a node from renewing its lease for longer than ROOM_MIN_S.
    HL-3  A lease that was taken after the last one was lost gives no more time to a round that the
          node was in: `LeaseHeld` is not told anew before the node asks for the next round.
    HL-4  A renewal is due while at least half of the time that an answer has left until `stop_at`
          remains. So an answer that comes late does not put the next renewal off until after the
          end of the lease.
"""

from __future__ import annotations

import math

from holdfast.rendezvous.effects import LeaseHeld
from holdfast.store.ops import AnyOp, Lease, LeaseKeep

__all__ = ["MARGIN", "ROOM_MIN_S", "OwnLease"]

MARGIN = 0.1
ROOM_MIN_S = 1.0
"""How long any operation may take, though a renewal is due."""


class OwnLease:
    """What a node knows of its lease."""

    def __init__(self, keep_alive_s: float) -> None:
        self._keep_alive_s = keep_alive_s
        self._ttl = 0.0
        self._newest: LeaseHeld | None = None
        self._forfeited = False  # the place in a round, with the lease before this one
        self.lease: Lease | None = None
        self.keep_at = 0.0
        """When to renew the lease."""

    def granted(self, lease: Lease, sent_at: float, now: float) -> list[LeaseHeld]:
        """Hear that the lease was granted, by a request that was sent then; return what to tell."""
        self.lease, self._ttl = lease, lease.ttl
        return self.renewed(sent_at, now)

    def renewed(self, sent_at: float, now: float) -> list[LeaseHeld]:
        """Hear that the lease was renewed, by a request that was sent then; return what to tell."""
        stop_at = sent_at + self._ttl * (1 - 2 * MARGIN)
        held = self._newest = LeaseHeld(stop_at, kill_at=sent_at + self._ttl * (1 - MARGIN))
        self.keep_at = now + min(self._keep_alive_s, max(0.0, stop_at - now) / 2)
        return [] if self._forfeited else [held]

    def asked(self) -> list[LeaseHeld]:
        """Hear that the node asks for a round; return what was kept back (HL-3)."""
        kept_back = self._newest if self._forfeited else None
        self._forfeited = False
        return [] if kept_back is None else [kept_back]

    def room_s(self, op: AnyOp | None, now: float) -> float:
        """Return how long an operation may take: it ends before a renewal is due."""
        if self.lease is None or isinstance(op, LeaseKeep):
            return math.inf
        return max(ROOM_MIN_S, self.keep_at - now)

    def lost(self, in_round: bool) -> None:
        """Hear that the store does not know the lease any more, and whether it held a place."""
        self.lease = self._newest = None
        self._forfeited = self._forfeited or in_round
