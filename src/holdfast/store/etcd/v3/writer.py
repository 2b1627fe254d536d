"""Writes to etcd that happen exactly once, although connections and leaders die.

A connection may die after a write was sent, and a leader after it took it; the writer must then
find out whether it happened. Each lane owns a marker, a key that no other lane knows, and each
of its writes is a transaction that also puts the marker, on the condition that the marker still
has the revision at which the lane last put it.

Guarantees
    EW-1  An attempt without an answer can be repeated as it is: at most one of all attempts meets
          the marker's condition, however late one of them arrives.
    EW-2  If the marker's condition fails, an earlier attempt met it, and the marker's revision
          is that of the write.
    EW-3  If the write's own condition fails while an attempt is still in doubt, the marker is
          first put alone ("fenced"), so that no attempt can come true after the answer "no".
    EW-4  Where neither can be known any more, at the deadline or because the marker's lease
          ended, the error says `maybe_applied`, and the lane takes another marker.

Markers begin with the byte 0xff, which no UTF-8 text contains, so that no listing of keys shows
them. They hang on a lease of ten minutes, kept alive by use, and are removed on close.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import count

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, LeaseLost, StoreUnavailable, TimeoutExpired
from holdfast.ids import new_token
from holdfast.records import dataclass
from holdfast.store.etcd.http.cluster import Lane, Marker, Retries
from holdfast.store.etcd.http.connection import Lost, NotSent
from holdfast.store.etcd.v3.gateway import (
    Gateway,
    GatewayRejected,
    Kv,
    Message,
    Txn,
    compare,
    put_op,
    range_op,
)
from holdfast.store.etcd.v3.lease import end_once, grant, is_alive, keep
from holdfast.store.keyspace import check_guard

__all__ = ["MARKER_TTL_S", "RESERVED", "Guard", "Write", "Writer", "Written"]

RESERVED = b"\xff"
"""The byte with which markers begin; the keys of all stores sort before it."""

MARKER_TTL_S = 600
_KEEP_EVERY_S = MARKER_TTL_S / 3
_WROTE, _FENCED = b"wrote", b"fenced"


@dataclass(frozen=True, slots=True)
class Guard:
    """What must be stored at a key, called `name` by the user, for a write to happen."""

    name: str
    key: bytes
    value: bytes

    def check(self, found: list[Kv]) -> None:
        """Raise Fenced unless what was found at the key is what must be there."""
        check_guard(self.name, self.value, found[0].value if found else None)


@dataclass(frozen=True, slots=True)
class Write:
    """A conditional write of one or several keys.

    `what` names it in errors; `read` is the key to look at when the condition fails; `lease` is the
    one on which the keys hang, to tell its end from that of the marker's; `guard` is one more
    condition, whose failure is told apart from that of the others.
    """

    what: str
    conditions: list[Message]
    puts: list[Message]
    read: bytes | None = None
    lease: int | None = None
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a write: done at `revision`, or its condition failed and `found` is there."""

    ok: bool
    revision: int
    found: Kv | None = None


class Writer:
    """Performs writes. Thread-safe; all state is in the lanes."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._client = gateway.client
        self._prefix = RESERVED + f"holdfast/{new_token(gateway.client.rng, 16)}/".encode()
        self._numbers = count()

    def write(self, lane: Lane, write: Write, deadline: Deadline) -> Written:
        """Perform a write; Fenced if its guard does not hold.

        StoreUnavailable or TimeoutExpired say if it may have happened.
        """
        retries = self._client.retries(write.what, deadline, writes=True)
        try:
            while True:
                marker = self._marker(lane, deadline, write.what)
                try:
                    txn = self._attempt(lane, marker, write, retries.attempt())
                except (NotSent, Lost) as error:
                    retries.failed(error)
                    continue
                except GatewayRejected:
                    self._replace_lease(lane, write, retries, deadline)
                    continue
                written = self._outcome(lane, marker, write, txn, retries)
                if written is not None:
                    return written
        except HoldfastError as error:
            if retries.lost:
                lane.marker = None  # EW-4
            if isinstance(error, (TimeoutExpired, StoreUnavailable)):
                error.maybe_applied = retries.lost  # it may come from the care for the marker
            raise

    def remove(self, markers: Sequence[Marker], deadline: Deadline) -> None:
        """Remove markers, as far as one try lets us: their leases end anyway."""
        with contextlib.closing(self._client), self._client.lane() as lane:
            for marker in markers:
                with contextlib.suppress(HoldfastError, GatewayRejected):
                    end_once(self._gateway, lane, marker.lease, deadline)

    # Parts.

    def _attempt(self, lane: Lane, marker: Marker, write: Write, deadline: Deadline) -> Txn:
        conditions = [compare(marker.key, "MOD", marker.revision), *write.conditions]
        looks = [range_op(marker.key)]
        if write.read is not None:
            looks.append(range_op(write.read))
        if write.guard is not None:
            conditions.append(compare(write.guard.key, "VALUE", write.guard.value))
            looks.append(range_op(write.guard.key))
        return self._gateway.txn(
            lane,
            conditions,
            [*write.puts, put_op(marker.key, _WROTE, marker.lease)],
            looks,
            deadline,
            write.what,
        )

    def _outcome(
        self, lane: Lane, marker: Marker, write: Write, txn: Txn, retries: Retries
    ) -> Written | None:
        """Judge an answered attempt; None if the write must be tried again."""
        if txn.succeeded:
            marker.revision = txn.revision
            return Written(True, txn.revision)
        now = txn.ranges[0][0] if txn.ranges[0] else None
        if (now.revision if now else 0) == marker.revision:
            if retries.lost:
                return self._fence(lane, marker, write, txn, retries)
            return _refused(write, txn)
        return self._changed(lane, marker, write, now, retries)

    def _changed(
        self, lane: Lane, marker: Marker, write: Write, now: Kv | None, retries: Retries
    ) -> Written | None:
        """Judge by a marker that is not as we left it; None if the write must be tried again."""
        if not retries.lost:
            lane.marker = None  # it ended with its lease while the lane was idle
            return None
        if now is None:
            raise _unknowable(write)
        marker.revision = now.revision
        if now.value == _FENCED:
            retries.lost = False
            return None
        return Written(True, now.revision)  # EW-2

    def _fence(
        self, lane: Lane, marker: Marker, write: Write, txn: Txn, retries: Retries
    ) -> Written | None:
        """Make the attempts that are in doubt impossible (EW-3), unless one came true."""
        guard = compare(marker.key, "MOD", marker.revision)
        put = put_op(marker.key, _FENCED, marker.lease)
        while True:
            try:
                fence = self._gateway.txn(
                    lane, [guard], [put], [range_op(marker.key)], retries.attempt(), write.what
                )
            except (NotSent, Lost) as error:
                retries.failed(error)
                continue
            except GatewayRejected:
                raise _unknowable(write) from None
            if fence.succeeded:
                marker.revision = fence.revision
                retries.lost = False
                return _refused(write, txn)
            now = fence.ranges[0][0] if fence.ranges[0] else None
            return self._changed(lane, marker, write, now, retries)

    def _replace_lease(
        self, lane: Lane, write: Write, retries: Retries, deadline: Deadline
    ) -> None:
        """See whose lease was not found: the write's own, or the marker's, which is replaced."""
        if write.lease and not is_alive(self._gateway, lane, write.lease, deadline, write.what):
            raise LeaseLost(f"lease {write.lease} expired or was revoked")
        if retries.lost:
            raise _unknowable(write)
        lane.marker = None
        retries.failed(NotSent("its marker's lease expired"))

    def _marker(self, lane: Lane, deadline: Deadline, what: str) -> Marker:
        """Return the lane's marker, made if there is none, its lease kept alive."""
        marker = lane.marker
        now = self._client.clock.monotonic()
        if marker is not None and now - marker.kept_at > _KEEP_EVERY_S:
            keep(self._gateway, lane, marker.lease, deadline, what)  # gone? the write will say
            marker.kept_at = now
        if marker is None:
            lease = grant(self._gateway, lane, MARKER_TTL_S, deadline, what)
            key = self._prefix + b"%d" % next(self._numbers)
            lane.marker = marker = Marker(key, lease.id, now)
        return marker


def _unknowable(write: Write) -> StoreUnavailable:
    return StoreUnavailable(
        f"{write.what}: its marker expired before an answer came", maybe_applied=True
    )


def _refused(write: Write, txn: Txn) -> Written:
    """Return that a condition failed; Fenced if it was the guard (the last that was looked at)."""
    if write.guard is not None:
        write.guard.check(txn.ranges[-1])
    found = txn.ranges[1] if write.read is not None else []
    return Written(False, txn.revision, found[0] if found else None)
