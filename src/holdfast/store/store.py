"""The store protocol: what every backend gives its users.

A store is a small shared key-value space: a few megabytes of keys for coordination, not a
database. `Store` holds everything that is the same for all backends: the verbs, their checks and
their deadlines. A backend implements three methods: `_perform`, `_open_watch`, `_close`.

Promises (checked by one contract suite over every backend; `keyspace.py` is the reference):
    K1  Operations on a key are linearizable.
    K2  An acknowledged write stays, for as long as the backend lives.
    K3  A wait or a watch never misses the final state of a key.
    K4  A lease never ends early, by the server's own monotonic clock, and at most 1 s late.
        (With `linger` it may end when its holder's connection does.)
    K5  `get` never blocks on a missing key; every call ends at its deadline.

Every call takes `timeout` in seconds; None means no limit. Methods may be called from many
threads. A write that ends in TimeoutExpired or StoreUnavailable says in `.maybe_applied`
whether it may have happened all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self, TypeVar

from holdfast.clock import Deadline, check_timeout
from holdfast.errors import UsageError
from holdfast.ids import LeaseId
from holdfast.net.address import Address, parse_endpoint
from holdfast.store.ops import (
    INT_MAX,
    INT_MIN,
    KEYS_PER_CALL_MAX,
    Add,
    Append,
    Change,
    CompareSet,
    Count,
    Delete,
    DeletePrefix,
    Entry,
    Get,
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
    check_key,
    check_keys,
    check_linger,
    check_prefix,
    check_ttl,
    check_value,
)

__all__ = ["DEFAULT_TIMEOUT_S", "Store", "Watch"]

DEFAULT_TIMEOUT_S = 60.0

R = TypeVar("R")


class Watch(ABC):
    """A stream of changes to one key, or to all keys under a prefix.

    It first delivers what exists (one `Change` for each key), then every later change. Changes
    that come faster than they are read are merged: for each key the newest is delivered, never
    an older one after it. So acting on the latest `Change` of a key is always right; counting
    changes is not.
    """

    def next(self, timeout: float | None = None) -> Change:
        """Return the next change. Blocks; TimeoutExpired at the deadline; UsageError if closed."""
        return self._next(Deadline.after(check_timeout(timeout)))

    def __iter__(self) -> Iterator[Change]:
        while True:
            yield self.next()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def _next(self, deadline: Deadline) -> Change: ...

    @abstractmethod
    def close(self) -> None:
        """End the watch and wake the thread that waits in `next`. Idempotent."""


class Store(ABC):
    """A shared key-value space. See the module's docstring for the promises."""

    endpoint: str
    """Where the store is, as `open_store` takes it; for messages."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where its servers are; none if it is of this host alone."""
        _, _, rest = self.endpoint.partition("://")
        if not rest or rest.startswith("/"):  # memory, or a file, whatever is in its name
            return ()
        return parse_endpoint(self.endpoint).addresses

    # What a backend implements.

    @abstractmethod
    def _perform(self, op: Op[R], deadline: Deadline) -> R: ...

    @abstractmethod
    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch: ...

    @abstractmethod
    def _close(self) -> None: ...

    # Reading.

    def get(self, key: str, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> bytes | None:
        """Return the value of a key, or None if there is none. Does not wait for the key."""
        entry = self._run(Get(check_key(key)), timeout)
        return None if entry is None else entry.value

    def get_entry(self, key: str, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Entry | None:
        """Return a key's value with its revision, or None if there is none."""
        return self._run(Get(check_key(key)), timeout)

    def multi_get(
        self, keys: Iterable[str], *, timeout: float | None = DEFAULT_TIMEOUT_S
    ) -> list[bytes | None]:
        """Return the values of several keys, read at one moment; None for each missing one."""
        entries = self._run(MultiGet(check_keys(keys)), timeout)
        return [None if entry is None else entry.value for entry in entries]

    def wait(
        self, keys: Iterable[str], *, timeout: float | None = DEFAULT_TIMEOUT_S
    ) -> list[bytes]:
        """Wait until all keys exist, and return their values at that moment.

        TimeoutExpired at the deadline; its `waiting_for` lists the keys that were missing.
        """
        return [entry.value for entry in self._run(Wait(check_keys(keys)), timeout)]

    def count(self, prefix: str = "", *, timeout: float | None = DEFAULT_TIMEOUT_S) -> int:
        """Return the number of keys that begin with `prefix`."""
        return self._run(Count(check_prefix(prefix)), timeout)

    def list_prefix(
        self, prefix: str = "", *, timeout: float | None = DEFAULT_TIMEOUT_S
    ) -> list[Entry]:
        """Return all entries whose key begins with `prefix`, read at one moment, ordered."""
        return list(self._run(ListPrefix(check_prefix(prefix)), timeout))

    def watch(
        self, key: str, *, prefix: bool = False, timeout: float | None = DEFAULT_TIMEOUT_S
    ) -> Watch:
        """Watch one key, or all keys that begin with `key` if `prefix` is true.

        `timeout` bounds the opening of the watch.
        """
        checked = check_prefix(key) if prefix else check_key(key)
        return self._open_watch(checked, prefix, Deadline.after(check_timeout(timeout)))

    # Writing.

    def set(
        self,
        key: str,
        value: bytes,
        *,
        lease: Lease | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
    ) -> int:
        """Write a key and return the store's new revision.

        With a lease the key lives as long as the lease; without one it loses the lease it had.
        """
        return self._run(Set(check_key(key), check_value(value), _lease_id(lease)), timeout)

    def multi_set(
        self,
        items: Mapping[str, bytes],
        *,
        lease: Lease | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
    ) -> int:
        """Write several keys at one moment and return the store's new revision."""
        if not isinstance(items, Mapping):
            raise UsageError(f"items {items!r:.80}: must be a mapping of keys to bytes")
        if len(items) > KEYS_PER_CALL_MAX:
            raise UsageError(f"items: {len(items)} given, at most {KEYS_PER_CALL_MAX} in one call")
        pairs = tuple(
            (check_key(key), check_value(value, f"value of key {key!r:.80}"))
            for key, value in items.items()
        )
        return self._run(MultiSet(pairs, _lease_id(lease)), timeout)

    def add(self, key: str, amount: int = 1, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> int:
        """Add to a counter kept as decimal text, absent meaning 0, and return the sum.

        UsageError if the key holds something else, or if the sum leaves 64 bits.
        """
        if not isinstance(amount, int) or isinstance(amount, bool):
            raise UsageError(f"amount {amount!r}: must be an int")
        if not INT_MIN <= amount <= INT_MAX:
            raise UsageError(f"amount {amount}: must fit in 64 bits, signed")
        return self._run(Add(check_key(key), amount), timeout)

    def compare_set(
        self,
        key: str,
        expected: bytes | None,
        desired: bytes | None,
        *,
        lease: Lease | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
    ) -> Swap:
        """Write `desired` if the key's value is `expected`; return (ok, value, revision).

        None means absence on both sides: `expected=None` creates, `desired=None` deletes.
        """
        op = CompareSet(
            check_key(key),
            None if expected is None else check_value(expected, "expected"),
            None if desired is None else check_value(desired, "desired"),
            _lease_id(lease),
        )
        return self._run(op, timeout)

    def append(self, key: str, value: bytes, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> int:
        """Append to a key's value, absent meaning empty, and return its new length."""
        return self._run(Append(check_key(key), check_value(value)), timeout)

    def delete(self, key: str, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> bool:
        """Remove a key and say whether it was there."""
        return self._run(Delete(check_key(key)), timeout)

    def delete_prefix(self, prefix: str, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> int:
        """Remove all keys that begin with `prefix`, which must not be empty; return the revision.

        At one moment, except in etcd's v2 API and in torch's store: there key by key.
        """
        return self._run(DeletePrefix(check_key(prefix, "prefix")), timeout)

    # Leases.

    def grant_lease(
        self,
        ttl: float,
        *,
        linger: float | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
    ) -> Lease:
        """Take a lease: keys written with it vanish `ttl` seconds after it was last kept alive.

        With `linger`, a `tcp://` server ends it that many seconds after this client's connection
        was closed and not made again: a process that dies is noticed at once. Other backends
        know nothing of connections and go by `ttl` alone.
        """
        return self._run(LeaseGrant(check_ttl(ttl), check_linger(linger)), timeout)

    def keep_lease(self, lease: Lease, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> float:
        """Start the lease's time afresh and return it in seconds; LeaseLost if it is gone."""
        return self._run(LeaseKeep(_checked(lease).id), timeout)

    def revoke_lease(self, lease: Lease, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> bool:
        """End the lease and remove its keys now; say whether it was still alive."""
        return self._run(LeaseRevoke(_checked(lease).id), timeout)

    # Lifetime.

    def close(self) -> None:
        """Release the store's resources here. Idempotent; later calls raise UsageError."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.endpoint}>"

    def _run(self, op: Op[R], timeout: float | None) -> R:
        return self._perform(op, Deadline.after(check_timeout(timeout)))


def _checked(lease: Lease) -> Lease:
    if not isinstance(lease, Lease):
        raise UsageError(f"lease {lease!r:.80}: must be what grant_lease returned")
    return lease


def _lease_id(lease: Lease | None) -> LeaseId | None:
    return None if lease is None else _checked(lease).id
