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
it, so that all keys of a lease end at one moment. A client that meets the node of such a key
removes it. No thread is started; a wait or a watch reads its own connection on its caller's thread.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar, cast

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.net.address import Address, Endpoint
from holdfast.net.tls import ClientTls
from holdfast.store.etcd.followers import Followers
from holdfast.store.etcd.http.cluster import EtcdClient
from holdfast.store.etcd.v2.api import Layout, Node, Poll
from holdfast.store.etcd.v2.ops import Task
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
        self._followers = Followers(self._client)

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
        return self._followers.watch(key, prefix, source, snapshot, deadline)

    def _close(self) -> None:
        self._client.close()
        self._followers.close()

    def _wait(self, keys: tuple[str, ...], deadline: Deadline) -> tuple[Entry, ...]:
        def read(limit: Deadline) -> tuple[int, list[Entry | None]]:
            index, nodes = self._read_all(limit, "wait")
            found = {node.key: node.entry for node in nodes}
            return index, [found.get(key) for key in keys]

        def follow(missing: tuple[str, ...]) -> Poll:
            # One poll follows one key; when it has changed, all are read again.
            return Poll(self._client, self._layout.key(missing[0]), lambda changed: True)

        return self._followers.wait(keys, read, follow, deadline)

    def _read_all(self, deadline: Deadline, what: str) -> tuple[int, list[Node]]:
        with self._client.lane() as lane:
            return Task(self._client, self._layout, lane, deadline, what).read_all()
