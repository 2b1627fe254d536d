"""A store on etcd, by its v3 API.

Keys lie under a prefix of the cluster; revisions are etcd's own. Every operation is one request
or one transaction, except that `add` and `append` read, and then write if nothing has changed,
until that succeeds. Writes happen exactly once: see `writer.py`. No thread is started; a wait
or a watch reads its own connection on its caller's thread.

What differs from `keyspace.py`: a lease's time to live is whole seconds, at least about one and a
half election timeouts of the cluster, and starts afresh when the cluster elects another leader; one
call may write at most as many keys as the server's --max-txn-ops allows, less one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeAlias, TypeVar, assert_never, cast

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import LeaseLost
from holdfast.ids import LeaseId
from holdfast.net.address import Address, Endpoint
from holdfast.net.tls import ClientTls
from holdfast.store.etcd.followers import Followers
from holdfast.store.etcd.http.cluster import EtcdClient, Lane
from holdfast.store.etcd.http.reply import decoding
from holdfast.store.etcd.v3.gateway import (
    Gateway,
    Kv,
    Message,
    compare,
    delete_op,
    kvs_of,
    put_op,
    range_op,
    read_txn,
    revision_of,
)
from holdfast.store.etcd.v3.lease import grant, is_alive, keep, revoke
from holdfast.store.etcd.v3.stream import EventStream
from holdfast.store.etcd.v3.writer import RESERVED, Guard, Write, Writer
from holdfast.store.keyspace import added, appended
from holdfast.store.ops import (
    Add,
    Append,
    CompareSet,
    Count,
    Delete,
    DeletePrefix,
    Entry,
    Get,
    Guarded,
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
from holdfast.store.store import Store, Watch

__all__ = ["DEFAULT_PREFIX", "EtcdStore"]

R = TypeVar("R")

DEFAULT_PREFIX = "holdfast"
READS_PER_TXN = 100  # well below the server's default of 128
_CLOSE_S = 1.0


_QuickOp: TypeAlias = (
    Get
    | Set
    | Add
    | CompareSet
    | Delete
    | DeletePrefix
    | Append
    | MultiGet
    | MultiSet
    | Count
    | ListPrefix
    | LeaseGrant
    | LeaseKeep
    | LeaseRevoke
    | Guarded[object]
)


class EtcdStore(Store):
    """The keys under `<prefix>/` of an etcd cluster.

    Making one does no I/O: the cluster is looked for at the first operation, until its deadline.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        prefix: str = DEFAULT_PREFIX,
        *,
        rng: random.Random | None = None,
        tls: ClientTls | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        options = {} if tls is None else {"protocol": "https", **tls.files}
        self.endpoint = str(Endpoint("etcd", tuple(addresses), prefix, options))
        self._prefix = prefix.encode() + b"/"
        rng = rng or random.SystemRandom()
        self._client = EtcdClient(self.endpoint, addresses, rng, clock, tls)
        self._gateway = Gateway(self._client)
        self._writer = Writer(self._gateway)
        self._followers = Followers(self._client)

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        if isinstance(op, Wait):  # may take long, and needs a lane only now and then
            return cast(R, self._wait(op.keys, deadline))
        with self._client.lane() as lane:
            return cast(R, self._dispatch(cast("_QuickOp", op), lane, deadline))

    def _dispatch(
        self, op: _QuickOp, lane: Lane, deadline: Deadline, guard: Guard | None = None
    ) -> object:
        match op:
            case Guarded(key, expected, write):
                guard = Guard(key, self._full(key), expected)
                return self._dispatch(write, lane, deadline, guard)
            case Get(key):
                return self._read_many((key,), lane, deadline)[1][0]
            case MultiGet(keys):
                return self._read_many(keys, lane, deadline)[1]
            case Count(prefix):
                return self._count(prefix, lane, deadline)
            case ListPrefix(prefix):
                return tuple(self._list(prefix, lane, deadline)[1])
            case Set(key, value, lease):
                return self._set(((key, value),), lease, guard, lane, deadline)
            case MultiSet(items, lease):
                return self._set(items, lease, guard, lane, deadline)
            case CompareSet():
                return self._compare_set(op, guard, lane, deadline)
            case Delete(key):
                return self._delete(key, guard, lane, deadline)
            case DeletePrefix(prefix):
                remove = delete_op(*self._under(prefix))
                removal = Write(f"delete_prefix {prefix!r:.80}", [], [remove], guard=guard)
                return self._writer.write(lane, removal, deadline).revision
            case Add(key, amount):
                total = self._update(
                    key, lambda old: b"%d" % added(key, old, amount), "add", guard, lane, deadline
                )
                return int(total)
            case Append(key, more):
                grown = self._update(
                    key, lambda old: appended(key, old, more), "append", guard, lane, deadline
                )
                return len(grown)
            case LeaseGrant(ttl):
                return grant(self._gateway, lane, ttl, deadline, "grant_lease")
            case LeaseKeep(lease_id):
                ttl = keep(self._gateway, lane, lease_id, deadline, "keep_lease")
                if ttl <= 0:
                    raise _lease_lost(lease_id)
                return ttl
            case LeaseRevoke(lease_id):
                return revoke(self._gateway, lane, lease_id, deadline, "revoke_lease")
            case _:
                assert_never(op)

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        def snapshot(limit: Deadline) -> tuple[int, list[Entry]]:
            with self._client.lane() as lane:
                if prefix:
                    return self._list(key, lane, limit)
                revision, found = self._read_many((key,), lane, limit)
                return revision, [entry for entry in found if entry is not None]

        span = self._under(key) if prefix else (self._full(key), b"")
        source = EventStream(self._client, span, self._key_of)
        return self._followers.watch(key, prefix, source, snapshot, deadline)

    def _close(self) -> None:
        lanes = self._client.close()
        self._followers.close()
        markers = [lane.marker for lane in lanes if lane.marker is not None]
        if markers:
            parting = Writer(Gateway(self._client.reopened()))
            parting.remove(markers, Deadline.after(_CLOSE_S, self._client.clock))

    # Keys.

    def _full(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def _under(self, prefix: str) -> tuple[bytes, bytes]:
        """Return the range of the keys that begin with `prefix`: no UTF-8 has the last byte."""
        start = self._full(prefix)
        return start, start + RESERVED

    def _key_of(self, full: bytes) -> str:
        return full[len(self._prefix) :].decode()

    def _entry(self, kv: Kv) -> Entry:
        return Entry(self._key_of(kv.key), kv.value, kv.revision)

    # Reading.

    def _read_many(
        self, keys: Sequence[str], lane: Lane, deadline: Deadline
    ) -> tuple[int, tuple[Entry | None, ...]]:
        """Read keys at one moment; return the revision of the store at it, too."""
        entries: list[Entry | None] = []
        revision = 0
        what = f"reading {keys[0]!r:.80}" if keys else "reading"
        for start in range(0, len(keys) or 1, READS_PER_TXN):
            part = keys[start : start + READS_PER_TXN]
            # All parts after the first read as of its revision.
            reads = [range_op(self._full(key), revision=revision) for key in part]
            body: Message = {"success": reads}
            txn = read_txn(self._gateway.ask(lane, "/v3/kv/txn", body, deadline, what))
            revision = revision or txn.revision
            with decoding():
                entries += (self._entry(kvs[0]) if kvs else None for kvs in txn.ranges)
        return revision, tuple(entries)

    def _list(self, prefix: str, lane: Lane, deadline: Deadline) -> tuple[int, list[Entry]]:
        op = range_op(*self._under(prefix))
        reply = self._gateway.read(lane, op, deadline, f"listing {prefix!r:.80}")
        with decoding():
            return revision_of(reply), [self._entry(kv) for kv in kvs_of(reply)]

    def _count(self, prefix: str, lane: Lane, deadline: Deadline) -> int:
        op = range_op(*self._under(prefix), count_only=True)
        reply = self._gateway.read(lane, op, deadline, f"counting {prefix!r:.80}")
        with decoding():
            return int(reply.get("count", 0))

    def _wait(self, keys: tuple[str, ...], deadline: Deadline) -> tuple[Entry, ...]:
        def read(limit: Deadline) -> tuple[int, tuple[Entry | None, ...]]:
            with self._client.lane() as lane:
                return self._read_many(keys, lane, limit)

        def follow(missing: tuple[str, ...]) -> EventStream:
            # One stream follows one range: the one from the first to the last of the keys.
            span = self._full(min(missing)), self._full(max(missing)) + b"\0"
            return EventStream(self._client, span, self._key_of)

        return self._followers.wait(keys, read, follow, deadline)

    # Writing.

    def _set(
        self,
        items: tuple[tuple[str, bytes], ...],
        lease: LeaseId | None,
        guard: Guard | None,
        lane: Lane,
        deadline: Deadline,
    ) -> int:
        what = f"writing {items[0][0]!r:.80}" if items else "writing nothing"
        if not items:
            if guard is not None:
                self._find(guard.key, guard, lane, deadline, what)
            self._check_lease(lease, lane, deadline, what)
            return self._read_many((), lane, deadline)[0]
        puts = [put_op(self._full(key), value, lease) for key, value in dict(items).items()]
        write = Write(what, [], puts, lease=lease, guard=guard)
        return self._writer.write(lane, write, deadline).revision

    def _compare_set(
        self, op: CompareSet, guard: Guard | None, lane: Lane, deadline: Deadline
    ) -> Swap:
        key = self._full(op.key)
        what = f"compare_set {op.key!r:.80}"
        if op.expected is None:
            condition = compare(key, "CREATE", 0)
        else:
            condition = compare(key, "VALUE", op.expected)
        if op.desired is None:
            lease = None
            action = delete_op(key)
        else:
            lease = op.lease
            action = put_op(key, op.desired, lease)
        if op.expected is None and op.desired is None:  # nothing to write
            found = self._find(key, guard, lane, deadline, what)
            return _found(found is None, found)
        write = Write(what, [condition], [action], read=key, lease=lease, guard=guard)
        written = self._writer.write(lane, write, deadline)
        if written.ok:
            return Swap(True, op.desired, 0 if op.desired is None else written.revision)
        self._check_lease(lease, lane, deadline, what)
        return _found(False, written.found)

    def _delete(self, key: str, guard: Guard | None, lane: Lane, deadline: Deadline) -> bool:
        full = self._full(key)
        there = compare(full, "CREATE", 0, "GREATER")
        write = Write(f"delete {key!r:.80}", [there], [delete_op(full)], guard=guard)
        return self._writer.write(lane, write, deadline).ok

    def _update(
        self,
        key: str,
        change: Callable[[bytes | None], bytes],
        verb: str,
        guard: Guard | None,
        lane: Lane,
        deadline: Deadline,
    ) -> bytes:
        """Replace a value by what `change` makes of it, keeping its lease; return the new one."""
        full = self._full(key)
        what = f"{verb} {key!r:.80}"
        found = self._find(full, guard, lane, deadline, what)
        for tries in count(1):
            value = change(found.value if found else None)
            lease = found.lease if found else 0
            same = compare(full, "MOD", found.revision if found else 0)
            write = Write(what, [same], [put_op(full, value, lease)], read=full, guard=guard)
            written = self._writer.write(lane, write, deadline)
            if written.ok:
                return value
            found = written.found
            if tries > 1:  # what was found is of now; after a pause it would not be
                self._client.give_way(tries, what, deadline)
                found = self._find(full, guard, lane, deadline, what)
        raise AssertionError  # for mypy: the loop has no end

    def _find(
        self, full: bytes, guard: Guard | None, lane: Lane, deadline: Deadline, what: str
    ) -> Kv | None:
        """Look at a key; Fenced if the guard does not hold at that moment."""
        if guard is None:
            reply = self._gateway.read(lane, range_op(full), deadline, what)
            with decoding():
                return next(iter(kvs_of(reply)), None)
        body = {"success": [range_op(full), range_op(guard.key)]}
        txn = read_txn(self._gateway.ask(lane, "/v3/kv/txn", body, deadline, what))
        guard.check(txn.ranges[1])
        return next(iter(txn.ranges[0]), None)

    def _check_lease(
        self, lease: LeaseId | None, lane: Lane, deadline: Deadline, what: str
    ) -> None:
        if lease is not None and not is_alive(self._gateway, lane, lease, deadline, what):
            raise _lease_lost(lease)


def _lease_lost(lease: LeaseId) -> LeaseLost:
    return LeaseLost(f"lease {lease} expired or was revoked")


def _found(ok: bool, found: Kv | None) -> Swap:
    return Swap(ok, None, 0) if found is None else Swap(ok, found.value, found.revision)
