"""What follows the changes of a cluster: watches and waits, by either API.

Both read first and follow then, so that nothing is missed in between, and look again every few
seconds, since events are never trusted alone. Closing the store wakes them all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, TimeoutExpired
from holdfast.store.etcd.http.cluster import EtcdClient, backoff_s, still_missing
from holdfast.store.etcd.http.connection import Lost, NoAnswer, NotSent
from holdfast.store.etcd.watch import REREAD_S, ChangeSource, EtcdWatch, Snapshot
from holdfast.store.ops import Entry

__all__ = ["Followers"]


class Followers:
    """The watches and the waits of one store."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._lock = threading.Lock()  # guards what follows
        self._watches: set[EtcdWatch] = set()
        self._sources: set[ChangeSource] = set()  # of the waits that are going on

    def watch(
        self, key: str, prefix: bool, source: ChangeSource, snapshot: Snapshot, deadline: Deadline
    ) -> EtcdWatch:
        """Open a watch that follows this source."""
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

    def wait(
        self,
        keys: tuple[str, ...],
        read: Callable[[Deadline], tuple[int, Sequence[Entry | None]]],
        follow: Callable[[tuple[str, ...]], ChangeSource],
        deadline: Deadline,
    ) -> tuple[Entry, ...]:
        """Wait until all keys exist; return their entries at that moment.

        `read` gives the store's revision and the keys' entries, `follow` a source of changes for
        keys that are missing.
        """
        missing = keys
        for failures in count():
            try:
                revision, entries = read(deadline)
            except TimeoutExpired:
                raise still_missing(missing) from None
            missing = tuple(key for key, entry in zip(keys, entries, strict=True) if entry is None)
            if not missing:
                return tuple(entry for entry in entries if entry is not None)
            try:
                self._await_writes(missing, follow(missing), revision + 1, deadline)
            except NoAnswer:
                pass
            except (NotSent, Lost):
                self._client.pause(backoff_s(failures, self._client.rng), deadline)
            if deadline.passed():
                raise still_missing(missing)
        raise AssertionError  # for mypy: the loop has no end

    def close(self) -> None:
        """Wake and end all watches and waits; the client is closed already."""
        with self._lock:
            watches = list(self._watches)
            for source in self._sources:
                source.shut()
        for watch in watches:
            watch.close()

    def _forget(self, watch: EtcdWatch) -> None:
        with self._lock:
            self._watches.discard(watch)

    def _await_writes(
        self, keys: tuple[str, ...], source: ChangeSource, revision: int, deadline: Deadline
    ) -> None:
        """Return when all keys have been written since `revision`, or the source has ended.

        NoAnswer when it is time to look again; NotSent or Lost if the source fails.
        """
        missing = set(keys)
        limit = deadline.sooner(REREAD_S)
        with self._lock:
            self._client.check_open()
            self._sources.add(source)
        try:
            source.open(revision, limit)
            while missing and source.is_open:
                changes = source.changes(limit)
                missing -= {change.key for change in changes if change.value is not None}
        finally:
            with self._lock:
                self._sources.discard(source)
            source.close()
