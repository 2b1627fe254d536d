"""A store on etcd by its v2 keys API, for clusters that serve nothing newer.

What is weaker than `keyspace.py`, because v2 has no transactions and no leases:
    - `multi_set` writes one key after the other, each at a revision of its own; the last is
      returned, and a failure in between leaves the first ones written.
    - A write whose answer was lost is not repeated: the error says `maybe_applied`.
    - The guard of a write is looked at just before: a write that meets the guard's change may
      still come after it.
    - A lease's time to live is whole seconds by the server's wall clock, ends up to a second
      late, and starts afresh when it is kept alive, even for a moment after its end.
    - Reading several keys, listing, counting and watching read all keys of the store.

A lease is a node with a time to live; a key names its lease in its value and does not exist without
it, so that all keys of a lease end at one moment. Who meets the node of such a key removes it.
No thread is started; a wait or a watch reads its own connection on its caller's thread.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from itertools import count
from typing import TypeVar, cast

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import HoldfastError, TimeoutExpired
from holdfast.net.address import Address, Endpoint
from holdfast.net.tls import ClientTls
from holdfast.store.etcd.client import EtcdClient, backoff_s, still_missing
from holdfast.store.etcd.http import Lost, NoAnswer, NotSent
from holdfast.store.etcd.v2_api import Layout, Node, Poll
from holdfast.store.etcd.v2_ops import Task
from holdfast.store.etcd.watch import REREAD_S, EtcdWatch
from holdfast.store.ops import AnyOp, Entry, Op, Wait
from holdfast.store.store import Store, Watch

__all__ = ["DEFAULT_PREFIX", "EtcdV2Store"]

R = TypeVar("R")

DEFAULT_PREFIX = "holdfast"


class EtcdV2Store(Store):
    """The keys under a prefix of an etcd cluster. See the module for what is weaker.

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
        self.endpoint = str(Endpoint("etcd-v2", tuple(addresses), prefix, options))
        rng = rng or random.SystemRandom()
        self._client = EtcdClient(self.endpoint, addresses, rng, clock, tls)
        self._layout = Layout(prefix)
        self._lock = threading.Lock()  # guards what follows
        self._watches: set[EtcdWatch] = set()
        self._polls: set[Poll] = set()  # of the waits that are going on

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        if isinstance(op, Wait):  # may take long, and needs a lane only now and then
            return cast(R, self._wait(op.keys, deadline))
        with self._client.lane() as lane:
            what = f"{type(op).__name__} {getattr(op, 'key', '')!r:.80}"
            task = Task(self._client, self._layout, lane, deadline, what)
            return cast(R, task.perform(cast(AnyOp, op)))

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        def snapshot(limit: Deadline) -> tuple[int, list[Entry]]:
            index, nodes = self._read_all(limit, f"watch of {key!r:.80}")
            return index, sorted(node.entry for node in nodes if concerns(node.key))

        def concerns(found: str) -> bool:
            return found == key or (prefix and found.startswith(key))

        source = Poll(self._client, self._layout.root, concerns)
        watch = EtcdWatch(self._client, key, prefix, source, snapshot, self._forget)
        with self._lock:
            self._client.check_open()
            self._watches.add(watch)
        try:
            watch.start(deadline)
        except HoldfastError:
            watch.close()
            raise
        return watch

    def _close(self) -> None:
        self._client.close()
        with self._lock:
            watches = list(self._watches)
            for poll in self._polls:
                poll.shut()
        for watch in watches:
            watch.close()

    def _forget(self, watch: EtcdWatch) -> None:
        with self._lock:
            self._watches.discard(watch)

    def _wait(self, keys: tuple[str, ...], deadline: Deadline) -> tuple[Entry, ...]:
        missing = keys
        for failures in count():
            try:
                index, nodes = self._read_all(deadline, "wait")
            except TimeoutExpired:
                raise still_missing(missing) from None
            found = {node.key: node.entry for node in nodes}
            missing = tuple(key for key in keys if key not in found)
            if not missing:
                return tuple(found[key] for key in keys)
            try:
                self._await_change(missing[0], index + 1, deadline)
            except NoAnswer:
                pass
            except (NotSent, Lost):
                self._client.pause(backoff_s(failures, self._client.rng), deadline)
            if deadline.passed():
                raise still_missing(missing)
        raise AssertionError  # for mypy: the loop has no end

    def _read_all(self, deadline: Deadline, what: str) -> tuple[int, list[Node]]:
        with self._client.lane() as lane:
            return Task(self._client, self._layout, lane, deadline, what).read_all()

    def _await_change(self, key: str, index: int, deadline: Deadline) -> None:
        """Return when the key has changed since `index`; NoAnswer when to look again."""
        limit = deadline.sooner(REREAD_S)
        poll = Poll(self._client, self._layout.key(key), lambda changed: True)
        with self._lock:
            self._client.check_open()
            self._polls.add(poll)
        try:
            poll.open(index, limit)
            while poll.is_open and not poll.changes(limit):
                pass
        finally:
            with self._lock:
                self._polls.discard(poll)
            poll.close()
