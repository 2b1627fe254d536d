"""What the store's operations become in etcd's v2 keys API. See `store.py` for what is weaker."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from itertools import count
from typing import assert_never

from holdfast.clock import Deadline
from holdfast.errors import InternalError, LeaseLost, StoreUnavailable, TimeoutExpired
from holdfast.ids import LeaseId
from holdfast.store.etcd.http.cluster import EtcdClient, Lane
from holdfast.store.etcd.http.connection import HttpRequest
from holdfast.store.etcd.http.reply import decoding
from holdfast.store.etcd.v2.api import (
    Answer,
    ErrorCode,
    Layout,
    Node,
    V2Rejected,
    ask,
    envelope,
    get,
    node_from,
    put,
    remove,
)
from holdfast.store.keyspace import added, appended, check_guard
from holdfast.store.ops import (
    Add,
    AnyOp,
    Append,
    CompareSet,
    Count,
    Delete,
    DeletePrefix,
    Get,
    Guarded,
    Lease,
    LeaseGrant,
    LeaseKeep,
    LeaseRevoke,
    ListPrefix,
    MultiGet,
    MultiSet,
    Set,
    Swap,
    Wait,
)

__all__ = ["Task"]

# A lease's number ends in its time to live, so that keeping it alive needs no reading.
_TTL_BITS = 17
_RANDOM_BITS = 45


class Task:
    """One operation: by which lane, and until when."""

    def __init__(
        self, client: EtcdClient, layout: Layout, lane: Lane, deadline: Deadline, what: str
    ) -> None:
        self._client = client
        self._layout = layout
        self._lane = lane
        self._deadline = deadline
        self._what = what

    def perform(self, op: AnyOp) -> object:
        """Perform any operation but a wait."""
        match op:
            case Get(key):
                node = self._read(key)
                return node and node.entry
            case MultiGet(keys):
                found = {node.key: node.entry for node in self.read_all()[1]}
                return tuple(found.get(key) for key in keys)
            case Count(prefix):
                return sum(node.key.startswith(prefix) for node in self.read_all()[1])
            case ListPrefix(prefix):
                nodes = [node for node in self.read_all()[1] if node.key.startswith(prefix)]
                return tuple(node.entry for node in sorted(nodes, key=lambda node: node.key))
            case Set(key, value, lease):
                return self._set_all(((key, value),), lease)
            case MultiSet(items, lease):
                return self._set_all(items, lease)
            case CompareSet():
                return self._compare_set(op)
            case Delete(key):
                return self._delete(key)
            case DeletePrefix(prefix):
                index, nodes = self.read_all()
                for node in nodes:
                    if node.key.startswith(prefix):
                        self._delete(node.key)
                return index
            case Add(key, amount):
                return int(self._update(key, lambda old: b"%d" % added(key, old, amount)))
            case Append(key, more):
                return len(self._update(key, lambda old: appended(key, old, more)))
            case LeaseGrant(ttl):
                return self._grant(math.ceil(ttl))
            case LeaseKeep(lease_id):
                return self._keep(lease_id)
            case LeaseRevoke(lease_id):
                return self._revoke(lease_id)
            case Guarded(key, expected, write):
                guard = self._read(key)
                check_guard(key, expected, guard.value if guard else None)
                return self.perform(write)
            case Wait():
                raise InternalError("a wait is not performed in one step")
            case _:
                assert_never(op)

    def read_all(self) -> tuple[int, list[Node]]:
        """Read every key at one moment; return etcd's index at it, too."""
        try:
            answer = self._ask(get(self._layout.root, recursive="true"))
        except V2Rejected as error:
            return error.index, []
        with decoding():
            folders = {
                folder["key"]: folder.get("nodes", ()) for folder in answer.body["node"]["nodes"]
            }
            leases = {
                int(item["key"].rpartition("/")[2]) for item in folders.get(self._layout.leases, ())
            }
        nodes = [node_from(item) for item in folders.get(self._layout.keys, ())]
        alive: list[Node] = []
        dead: list[Node] = []
        for node in nodes:
            (alive if node.lease is None or node.lease in leases else dead).append(node)
        for node in dead:
            # No reader would see it again; that it is still there must not fail a reading.
            with contextlib.suppress(TimeoutExpired, StoreUnavailable):
                self._drop(node)
        return answer.index, alive

    # Keys.

    def _read(self, key: str) -> Node | None:
        """Return a key, None if it does not exist.

        A node without its lease is removed, to be sure that it does not exist now: it might have
        been written again since it was read.
        """
        while True:
            try:
                node = self._ask(get(self._layout.key(key))).node
            except V2Rejected:
                return None
            if node.lease is None or self._is_alive(node.lease):
                return node
            if self._drop(node):
                return None

    def _drop(self, node: Node) -> bool:
        """Remove a dead node, unless it has changed; say whether it is gone."""
        try:
            self._ask(remove(self._layout.key(node.key), prevIndex=str(node.index)))
        except V2Rejected as error:
            return error.code is ErrorCode.NOT_FOUND
        return True

    def _set_all(self, items: tuple[tuple[str, bytes], ...], lease: LeaseId | None) -> int:
        self._check_lease(lease)
        if not items:
            return self.read_all()[0]
        index = 0
        for key, value in items:
            try:
                request = put(self._layout.key(key), value=envelope(key, value, lease))
                index = self._write(request).node.index
            except (TimeoutExpired, StoreUnavailable) as error:
                error.maybe_applied = error.maybe_applied or index > 0
                raise
        return index

    def _replace(
        self, key: str, old: Node | None, value: bytes | None, lease: LeaseId | None
    ) -> int | None:
        """Write, or with None delete, if nothing has changed; return the index, None if it has."""
        path = self._layout.key(key)
        same = {"prevExist": "false"} if old is None else {"prevIndex": str(old.index)}
        if value is None:
            request = remove(path, **same)
        else:
            request = put(path, value=envelope(key, value, lease), **same)
        try:
            answer = self._write(request)
        except V2Rejected:
            return None
        with decoding():
            return int(answer.body["node"]["modifiedIndex"])

    def _compare_set(self, op: CompareSet) -> Swap:
        if op.desired is not None:
            self._check_lease(op.lease)
        for tries in count(1):
            old = self._read(op.key)
            current = None if old is None else old.value
            if current != op.expected:
                return Swap(False, current, 0 if old is None else old.index)
            if old is None and op.desired is None:
                return Swap(True, None, 0)
            index = self._replace(op.key, old, op.desired, op.lease)
            if index is not None:
                return Swap(True, op.desired, 0 if op.desired is None else index)
            self._client.give_way(tries, self._what, self._deadline)
        raise AssertionError  # for mypy: the loop has no end

    def _delete(self, key: str) -> bool:
        for tries in count(1):
            old = self._read(key)
            if old is None:
                return False
            if self._replace(key, old, None, None) is not None:
                return True
            self._client.give_way(tries, self._what, self._deadline)
        raise AssertionError  # for mypy: the loop has no end

    def _update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        for tries in count(1):
            old = self._read(key)
            value = change(old.value if old else None)
            if self._replace(key, old, value, old.lease if old else None) is not None:
                return value
            self._client.give_way(tries, self._what, self._deadline)
        raise AssertionError  # for mypy: the loop has no end

    # Leases. These may all be repeated when an answer is lost.

    def _grant(self, seconds: int) -> Lease:
        lease = LeaseId(self._client.rng.getrandbits(_RANDOM_BITS) << _TTL_BITS | seconds)
        path = self._layout.lease(lease)
        with contextlib.suppress(V2Rejected):  # it exists: from an attempt whose answer was lost
            self._ask(put(path, value="", prevExist="false", ttl=str(seconds)), writes=True)
        return Lease(lease, float(seconds))

    def _keep(self, lease: LeaseId) -> float:
        seconds = lease & ((1 << _TTL_BITS) - 1)
        refresh = put(self._layout.lease(lease), refresh="true", prevExist="true", ttl=str(seconds))
        try:
            self._ask(refresh, writes=True)
        except V2Rejected:
            raise _lost(lease) from None
        return float(seconds)

    def _revoke(self, lease: LeaseId) -> bool:
        if not self._is_alive(lease):
            return False
        with contextlib.suppress(V2Rejected):  # it ended meanwhile, so it was alive in this call
            self._ask(remove(self._layout.lease(lease)), writes=True)
        self.read_all()  # which removes what hung on it
        return True

    def _is_alive(self, lease: LeaseId) -> bool:
        try:
            self._ask(get(self._layout.lease(lease)))
        except V2Rejected:
            return False
        return True

    def _check_lease(self, lease: LeaseId | None) -> None:
        if lease is not None and not self._is_alive(lease):
            raise _lost(lease)

    # Asking.

    def _ask(self, request: HttpRequest, *, writes: bool = False) -> Answer:
        return ask(self._client, self._lane, request, self._deadline, self._what, writes=writes)

    def _write(self, request: HttpRequest) -> Answer:
        return ask(
            self._client,
            self._lane,
            request,
            self._deadline,
            self._what,
            writes=True,
            repeat=False,
        )


def _lost(lease: LeaseId) -> LeaseLost:
    return LeaseLost(f"lease {lease} expired or was revoked")
