"""The meaning of every store operation: the pure reference that all backends agree with.

Rule 1: everything that changes keys, revisions or leases is in this file.
Rule 2: this file reads no clock; `now` is given, and never decreases.

Theory. A keyspace is a map of keys to values, one counter of revisions, and a set of leases.
Each operation that changes at least one key takes the next revision, and stamps every key that
it changed with it. A lease has a moment at which it ends; keeping it alive moves that moment.
Before each operation the leases that have ended by `now` are removed with their keys, the
one that ended first going first, each at a revision of its own.

Guarantees
    KS-1  Revisions strictly increase: a later change never has a smaller or equal revision,
          and a key that is deleted and made again gets a larger one.
    KS-2  A key that hangs on a lease exists only while the lease does.
    KS-3  A lease never ends before its `ttl` has passed since it was granted or kept, unless
          it was curtailed.
    KS-4  An operation that raises changes nothing.
    KS-5  Every change of a key is in `take_changes()` exactly once, in order of revisions.
    KS-6  There are at most KEYS_MAX keys with BYTES_MAX bytes in all, and LEASES_MAX leases. An
          operation that would make it more is refused with UsageError; one that makes it less, or
          that keeps it as it is, never is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, NamedTuple, TypeVar, assert_never

from holdfast.errors import Fenced, InternalError, LeaseLost, UsageError
from holdfast.ids import LeaseId
from holdfast.records import dataclass
from holdfast.store.ops import (
    BYTES_MAX,
    INT_MAX,
    INT_MIN,
    KEYS_MAX,
    LEASES_MAX,
    VALUE_BYTES_MAX,
    Add,
    AnyOp,
    Append,
    Change,
    CompareSet,
    Count,
    Delete,
    DeletePrefix,
    Entry,
    Get,
    Guarded,
    Lease,
    LeaseGrant,
    LeaseKeep,
    LeaseRevoke,
    ListPrefix,
    MultiGet,
    MultiSet,
    Op,
    Set,
    Swap,
    Wait,
)

__all__ = [
    "Keyspace",
    "SavedItem",
    "SavedLease",
    "Snapshot",
    "added",
    "appended",
    "check_guard",
    "parse_counter",
]

R = TypeVar("R")

_DIGITS_MAX, _STALE_ENDS_MAX = 20, 64  # "-9223372036854775808" has 20


class SavedItem(NamedTuple):
    """A key as it stands in a snapshot."""

    key: str
    value: bytes
    revision: int
    lease: LeaseId | None


class SavedLease(NamedTuple):
    """A lease as it stands in a snapshot; `ends_at` is on the clock that `now` came from."""

    id: LeaseId
    ttl: float
    ends_at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a keyspace knows at one moment."""

    revision: int
    next_lease: int
    leases: tuple[SavedLease, ...]
    items: tuple[SavedItem, ...]


@dataclass(slots=True)
class _Item:
    value: bytes
    revision: int
    lease: LeaseId | None


@dataclass(slots=True)
class _LeaseState:
    ttl: float
    ends_at: float
    due: float
    keys: set[str] = field(default_factory=set)


def parse_counter(key: str, value: bytes) -> int:
    """Read a counter's decimal text; UsageError names the key if it is something else."""
    digits = value[1:] if value[:1] == b"-" else value
    if digits.isdigit() and len(value) <= _DIGITS_MAX:
        return int(value)
    raise UsageError(f"add: key {key!r:.80} holds {value[:40]!r}, which is not a decimal integer")


def added(key: str, value: bytes | None, amount: int) -> int:
    """Return a counter's value after an `add`; UsageError if there is none or it is too large."""
    total = amount + (0 if value is None else parse_counter(key, value))
    if not INT_MIN <= total <= INT_MAX:
        raise UsageError(f"add: key {key!r:.80} would become {total}, more than 64 bits hold")
    return total


def appended(key: str, value: bytes | None, more: bytes) -> bytes:
    """Return a value after an `append`; UsageError if it would be too large."""
    grown = (value or b"") + more
    if len(grown) > VALUE_BYTES_MAX:
        raise UsageError(
            f"append: key {key!r:.80} would grow to {len(grown)} bytes, "
            f"at most {VALUE_BYTES_MAX} are allowed"
        )
    return grown


def check_guard(key: str, expected: bytes, value: bytes | None) -> None:
    """Raise Fenced unless the key that guards a write holds what it should."""
    if value != expected:
        raise Fenced(f"the guard {key!r:.80} has changed: the write came too late")


class Keyspace:
    """Keys, revisions and leases. Not thread-safe; performs no I/O."""

    def __init__(self, first_lease: int = 1) -> None:
        self.revision = 0
        self._items: dict[str, _Item] = {}
        self._bytes = 0  # of all keys and values
        self._leases: dict[LeaseId, _LeaseState] = {}
        # Of each lease one (due, lease) pair that counts, perhaps too early: keeping a lease alive
        # costs O(1), and `expire` puts the pair back when it comes up before the real end.
        self._ends: list[tuple[float, LeaseId]] = []
        self._next_lease = first_lease
        self._changes: list[Change] = []

    # The machine.

    def apply(self, op: Op[R], now: float) -> R:
        """Perform one operation at `now` and return its result.

        UsageError for a wrong use (a counter that is no number), LeaseLost for a dead lease,
        Fenced for a guard that does not hold; then nothing has changed. A `Wait` whose keys
        are not all there raises InternalError: ask `ready()` first.
        """
        self.expire(now)
        known: Any = op
        result: R = self._apply(known, now)
        return result

    def _apply(self, op: AnyOp, now: float) -> Any:
        match op:
            case Get(key):
                return self._entry(key)
            case Set(key, value, lease):
                self._check_lease(lease)
                self._write(key, value, lease)
                return self.revision
            case Add(key, amount):
                return self._add(key, amount)
            case CompareSet():
                return self._compare_set(op)
            case Delete(key):
                return self._delete([key] if key in self._items else [])
            case DeletePrefix(prefix):
                self._delete(sorted(self._under(prefix)))
                return self.revision
            case Append(key, value):
                return self._append(key, value)
            case MultiGet(keys):
                return tuple(self._entry(key) for key in keys)
            case MultiSet(items, lease):
                return self._multi_set(items, lease)
            case Wait(keys):
                entries = self.ready(keys)
                if entries is None:
                    raise InternalError("a Wait was applied before its keys were there")
                return entries
            case Count(prefix):
                return sum(1 for _ in self._under(prefix)) if prefix else len(self._items)
            case ListPrefix(prefix):
                return tuple(self._sure_entry(key) for key in sorted(self._under(prefix)))
            case LeaseGrant(ttl):
                return self._grant(ttl, now)
            case LeaseKeep(lease_id):
                return self._keep(lease_id, now)
            case LeaseRevoke(lease_id):
                return self._revoke(lease_id)
            case Guarded(key, expected, guarded):
                item = self._items.get(key)
                check_guard(key, expected, item.value if item else None)
                return self._apply(guarded, now)
            case _:
                assert_never(op)

    def expire(self, now: float) -> None:
        """End the leases whose time has come, and delete their keys."""
        while self._ends and self._ends[0][0] <= now:
            end, lease_id = heapq.heappop(self._ends)
            lease = self._leases.get(lease_id)
            if lease is None or lease.due != end:
                continue  # revoked, or an earlier pair counts
            if lease.ends_at > end:  # kept alive since the pair was pushed
                self._push_end(lease_id, lease)
            else:
                self._drop_lease(lease_id)

    def curtail(self, lease_id: LeaseId, at: float) -> None:
        """Let a lease end at this moment, unless it ends before or is kept alive until then."""
        lease = self._leases.get(lease_id)
        if lease is not None and at < lease.ends_at:
            lease.ends_at = at
            if at < lease.due:
                self._push_end(lease_id, lease)
                self._forget_stale_ends()

    def renew_all(self, now: float) -> None:
        """Give every lease its whole time again."""
        for lease in self._leases.values():
            lease.ends_at = now + lease.ttl

    def has_lease(self, lease_id: LeaseId) -> bool:
        """Say whether a lease is alive, as of the last operation."""
        return lease_id in self._leases

    def next_expiry(self) -> float | None:
        """Return a moment before which no lease ends, or None if there is nothing to wait for."""
        return self._ends[0][0] if self._ends else None

    def ready(self, keys: Iterable[str]) -> tuple[Entry, ...] | None:
        """Return the entries of all keys, or None while one of them is missing."""
        entries = []
        for key in keys:
            entry = self._entry(key)
            if entry is None:
                return None
            entries.append(entry)
        return tuple(entries)

    def missing(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return those of the keys that do not exist."""
        return tuple(key for key in keys if key not in self._items)

    def state_of(self, key: str, prefix: bool) -> list[Change]:
        """Return what a new watch of the key, or of the prefix, delivers first: what exists."""
        keys = sorted(self._under(key)) if prefix else [key] if key in self._items else []
        return [Change(*self._sure_entry(key)) for key in keys]

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._items)

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call, oldest first, and forget them."""
        changes, self._changes = self._changes, []
        return changes

    # Saving and comparing.

    def dump(self) -> Snapshot:
        """Return all that `load` needs to make an equal keyspace. Changes not taken stay here."""
        return Snapshot(
            self.revision,
            self._next_lease,
            tuple(
                SavedLease(lease_id, lease.ttl, lease.ends_at)
                for lease_id, lease in self._leases.items()
            ),
            tuple(
                SavedItem(key, item.value, item.revision, item.lease)
                for key, item in self._items.items()
            ),
        )

    @classmethod
    def load(cls, snapshot: Snapshot) -> Keyspace:
        """Make a keyspace from a snapshot; UsageError if the snapshot contradicts itself."""
        keyspace = cls(snapshot.next_lease)
        keyspace.revision = snapshot.revision
        for saved in snapshot.leases:
            keyspace._leases[saved.id] = _LeaseState(saved.ttl, saved.ends_at, saved.ends_at)
            keyspace._ends.append((saved.ends_at, saved.id))
        heapq.heapify(keyspace._ends)
        for key, value, revision, lease in snapshot.items:
            keyspace._items[key] = _Item(value, revision, lease)
            keyspace._bytes += len(key) + len(value)
            if lease in keyspace._leases:
                keyspace._leases[lease].keys.add(key)
        try:
            keyspace.check_invariants()
        except InternalError as error:
            raise UsageError(f"snapshot: {error}") from None
        return keyspace

    def changes_since(self, older: Keyspace) -> list[Change]:
        """Return the changes that lead from what `older` published to this keyspace, in order.

        For keys changed in `older` and not yet taken from it, the state here is among them.
        """
        doubtful = {change.key for change in older._changes}
        changes = [
            Change(key, item.value, item.revision)
            for key, item in self._items.items()
            if key in doubtful or older._items.get(key) != item
        ]
        changes.sort(key=lambda change: change.revision)
        gone = (older._items.keys() | doubtful) - self._items.keys()
        changes += (Change(key, None, self.revision) for key in sorted(gone))
        return changes

    def check_invariants(self) -> None:
        """Raise InternalError if the parts contradict each other (KS-1, KS-2, KS-6)."""
        if any(not 0 < item.revision <= self.revision for item in self._items.values()):
            raise InternalError("KS-1: a key is newer than the store")
        if self._bytes != sum(len(key) + len(item.value) for key, item in self._items.items()):
            raise InternalError("KS-6: the bytes are counted wrong")
        hanging = {(item.lease, key) for key, item in self._items.items() if item.lease is not None}
        held = {(ident, key) for ident, lease in self._leases.items() for key in lease.keys}
        if hanging != held:
            raise InternalError("KS-2: keys and leases do not name each other")
        if any(not 0 < ident < self._next_lease for ident in self._leases):
            raise InternalError("KS-2: a lease was never granted")
        earliest = {ident: end for end, ident in sorted(self._ends, reverse=True)}
        if any(
            earliest.get(ident, math.inf) > lease.ends_at for ident, lease in self._leases.items()
        ):
            raise InternalError("KS-3: the end of a lease would be missed")

    # One operation each.

    def _add(self, key: str, amount: int) -> int:
        item = self._items.get(key)
        total = added(key, item.value if item else None, amount)
        self._write(key, b"%d" % total, item.lease if item else None)
        return total

    def _append(self, key: str, value: bytes) -> int:
        item = self._items.get(key)
        grown = appended(key, item.value if item else None, value)
        self._write(key, grown, item.lease if item else None)
        return len(grown)

    def _compare_set(self, op: CompareSet) -> Swap:
        item = self._items.get(op.key)
        current = item.value if item else None
        if op.desired is not None:
            self._check_lease(op.lease)
        if current != op.expected:
            return Swap(False, current, item.revision if item else 0)
        if op.desired is None:
            self._delete([op.key] if item else [])
            return Swap(True, None, 0)
        self._write(op.key, op.desired, op.lease)
        return Swap(True, op.desired, self.revision)

    def _multi_set(self, items: tuple[tuple[str, bytes], ...], lease: LeaseId | None) -> int:
        self._check_lease(lease)
        last = dict(items)  # of a repeated key the last counts (KS-1)
        self._check_room(last)
        if last:
            self.revision += 1
        for key, value in last.items():
            self._put(key, value, lease)
        return self.revision

    def _delete(self, keys: list[str]) -> bool:
        self.revision += bool(keys)
        for key in keys:
            self._remove(key)
        return bool(keys)

    def _grant(self, ttl: float, now: float) -> Lease:
        if len(self._leases) >= LEASES_MAX:
            raise UsageError(f"the store is full: it has {LEASES_MAX} leases, the most")
        lease_id = LeaseId(self._next_lease)
        self._next_lease += 1
        lease = self._leases[lease_id] = _LeaseState(ttl, now + ttl, now + ttl)
        self._push_end(lease_id, lease)
        return Lease(lease_id, ttl)

    def _keep(self, lease_id: LeaseId, now: float) -> float:
        self._check_lease(lease_id)
        lease = self._leases[lease_id]
        lease.ends_at = now + lease.ttl
        return lease.ttl

    def _revoke(self, lease_id: LeaseId) -> bool:
        if lease_id not in self._leases:
            return False
        self._drop_lease(lease_id)
        self._forget_stale_ends()
        return True

    # Parts.

    def _push_end(self, lease_id: LeaseId, lease: _LeaseState) -> None:
        lease.due = lease.ends_at
        heapq.heappush(self._ends, (lease.due, lease_id))

    def _forget_stale_ends(self) -> None:
        if len(self._ends) > 2 * len(self._leases) + _STALE_ENDS_MAX:
            self._ends = [(lease.due, ident) for ident, lease in self._leases.items()]
            heapq.heapify(self._ends)

    def _entry(self, key: str) -> Entry | None:
        item = self._items.get(key)
        return None if item is None else Entry(key, item.value, item.revision)

    def _sure_entry(self, key: str) -> Entry:
        item = self._items[key]
        return Entry(key, item.value, item.revision)

    def _under(self, prefix: str) -> Iterator[str]:
        return (key for key in self._items if key.startswith(prefix))

    def _check_lease(self, lease: LeaseId | None) -> None:
        if lease is not None and lease not in self._leases:
            raise LeaseLost(f"lease {lease} expired or was revoked")

    def _check_room(self, written: Mapping[str, bytes]) -> None:
        """Refuse a write that would make too many keys or bytes (KS-6)."""
        more_keys = more_bytes = 0
        for key, value in written.items():
            item = self._items.get(key)
            more_keys += item is None
            more_bytes += len(value) + (len(key) if item is None else -len(item.value))
        if more_keys and len(self._items) + more_keys > KEYS_MAX:
            raise UsageError(f"the store is full: it has {len(self._items)} keys of {KEYS_MAX}")
        if more_bytes > 0 and self._bytes + more_bytes > BYTES_MAX:
            why = f"it has {self._bytes} bytes of {BYTES_MAX}, no room for {more_bytes}"
            raise UsageError(f"the store is full: {why}")

    def _write(self, key: str, value: bytes, lease: LeaseId | None) -> None:
        """Write one key, at a revision of its own."""
        item = self._items.get(key)
        if item is None or len(value) > len(item.value):  # else it takes no more room
            self._check_room({key: value})
        self.revision += 1
        self._put(key, value, lease)

    def _put(self, key: str, value: bytes, lease: LeaseId | None) -> None:
        item = self._items.get(key)
        if item is None:
            self._items[key] = _Item(value, self.revision, lease)
            self._bytes += len(key) + len(value)
        else:
            self._bytes += len(value) - len(item.value)
            if item.lease is not None and item.lease != lease:
                self._leases[item.lease].keys.discard(key)
            item.value, item.revision, item.lease = value, self.revision, lease
        if lease is not None:
            self._leases[lease].keys.add(key)
        self._changes.append(Change(key, value, self.revision))

    def _remove(self, key: str) -> None:
        item = self._items.pop(key)
        self._bytes -= len(key) + len(item.value)
        if item.lease is not None:
            self._leases[item.lease].keys.discard(key)
        self._changes.append(Change(key, None, self.revision))

    def _drop_lease(self, lease_id: LeaseId) -> None:
        self._delete(sorted(self._leases[lease_id].keys))
        del self._leases[lease_id]
