"""What a store server tells its clients of changes: parked waits, and watches.

The half of `service.py` that is about changes, and states none of its guarantees anew.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from holdfast.errors import PeerViolation
from holdfast.net.frames import FRAME_BYTES_MAX
from holdfast.store.clients import ClientConnection, ClientSession, OpenWatch, Parked
from holdfast.store.effects import Effect, SendFrame
from holdfast.store.keyspace import Keyspace
from holdfast.store.messages import (
    WATCHES_MAX,
    CallFailure,
    Changed,
    WatchOpen,
    WatchSnapshot,
    Why,
    encode,
    encode_reply,
)
from holdfast.store.ops import AnyOp, Change, Entry, Get, ListPrefix, Wait
from holdfast.store.pending import Pending
from holdfast.store.wire import encode_result

__all__ = ["Delivery"]

SNAPSHOT_BYTES = 1024 * 1024

_Index: TypeAlias = defaultdict[str, dict[OpenWatch, None]]


class Delivery:
    """Waits and watches over one keyspace."""

    def __init__(self) -> None:
        self.keyspace = Keyspace()
        # Dicts used as sets, because the order of a set differs from run to run.
        self._waits: defaultdict[str, dict[Parked, None]] = defaultdict(dict)
        self._watches_of_key: _Index = defaultdict(dict)
        self._watches_of_prefix: _Index = defaultdict(dict)
        self._effects: list[Effect] = []
        self.queued_bytes = 0  # how much the effects not taken yet would send

    # Waits.

    def _park(self, session: ClientSession, number: int, op: Wait, now: float) -> bool:
        self.keyspace.expire(now)
        missing = set(self.keyspace.missing(op.keys))
        if not missing:
            return False
        parked = Parked(session, number, op, missing)
        session.parked[number] = parked
        for key in op.keys:
            self._waits[key][parked] = None
        self._publish()  # of what expired
        return True

    def _unpark(self, session: ClientSession, number: int) -> Parked | None:
        parked = session.parked.pop(number, None)
        if parked is not None:
            for key in parked.op.keys:
                waiting = self._waits[key]
                waiting.pop(parked, None)
                if not waiting:
                    del self._waits[key]
        return parked

    def _cancel(self, session: ClientSession, number: int) -> None:
        parked = self._unpark(session, number)
        if parked is not None:
            missing = tuple(key for key in parked.op.keys if key in parked.missing)
            # Without a text it is no longer than the call was, so it fits into a frame.
            self._send(session.connection, encode(CallFailure(number, Why.CANCELLED, "", missing)))

    # Watches.

    def _open_watch(self, conn: ClientConnection, message: WatchOpen, now: float) -> None:
        if message.watch in conn.watches:
            raise PeerViolation(f"watch {message.watch} is open already")
        if len(conn.watches) >= WATCHES_MAX:
            raise PeerViolation(f"more than {WATCHES_MAX} watches")
        key, prefix = message.key, message.prefix
        watch = OpenWatch(conn, message.watch, key, prefix, Pending(key, prefix))
        if prefix:
            entries = self.keyspace.apply(ListPrefix(key), now)
        else:
            found = self.keyspace.apply(Get(key), now)
            entries = () if found is None else (found,)
        self._publish()  # what expired belongs to the others, not to this watch
        conn.watches[watch.id] = watch
        self._index(watch)[key][watch] = None
        part, size = [], 0
        for entry in entries:
            part.append(entry)
            size += len(entry.key) + len(entry.value)
            if size > SNAPSHOT_BYTES:
                snapshot = WatchSnapshot(watch.id, False, self.keyspace.revision, tuple(part))
                self._send(conn.id, encode(snapshot))
                part, size = [], 0
        last = WatchSnapshot(watch.id, True, self.keyspace.revision, tuple(part))
        self._send(conn.id, encode(last))

    def _close_watch(self, conn: ClientConnection, watch_id: int) -> None:
        watch = conn.watches.pop(watch_id, None)
        if watch is not None:
            index = self._index(watch)
            index[watch.key].pop(watch, None)
            if not index[watch.key]:
                del index[watch.key]

    def _index(self, watch: OpenWatch) -> _Index:
        return self._watches_of_prefix if watch.prefix else self._watches_of_key

    # Changes.

    def _publish(self) -> None:
        """Tell waits and watches what changed."""
        for change in self.keyspace.take_changes():
            if change.key in self._waits:
                self._tell_waits(change)
            if change.key in self._watches_of_key:
                self._tell_watches(self._watches_of_key[change.key], change)
            for prefix, watches in self._watches_of_prefix.items():
                if change.key.startswith(prefix):
                    self._tell_watches(watches, change)

    def _tell_waits(self, change: Change) -> None:
        for parked in list(self._waits[change.key]):
            if change.value is None:
                parked.missing.add(change.key)
                continue
            parked.missing.discard(change.key)
            entries = None if parked.missing else self.keyspace.ready(parked.op.keys)
            if entries is not None:  # None: gone again by a change that is told next
                self._unpark(parked.session, parked.number)
                answer = self._reply(parked.number, parked.op, entries)
                self._send(parked.session.connection, answer)

    def _tell_watches(self, watches: dict[OpenWatch, None], change: Change) -> None:
        payloads: dict[int, bytes] = {}  # clients tend to use the same few watch numbers
        for watch in watches:
            if watch.connection.congested:
                watch.pending.offer((change,))  # SV-5
                continue
            payload = payloads.get(watch.id)
            if payload is None:
                payload = payloads[watch.id] = encode(Changed(watch.id, change))
            self._send(watch.connection.id, payload)

    def _send(self, connection: int, payload: bytes) -> None:
        self._effects.append(SendFrame(connection, payload))
        self.queued_bytes += len(payload)

    def _reply(self, number: int, op: AnyOp, result: object) -> bytes:
        size = _bytes_in(result)  # judged before it is copied: a key may be asked for many times
        if size <= FRAME_BYTES_MAX:
            answer = encode_reply(number, encode_result(op, result))
            size = len(answer)
            if size <= FRAME_BYTES_MAX:
                return answer
        text = f"the answer would take {size} bytes, at most {FRAME_BYTES_MAX} fit"
        return encode(CallFailure(number, Why.USAGE, text))


def _bytes_in(result: object) -> int:
    """Return how many bytes the values of a result take, at least."""
    if isinstance(result, Entry):
        return len(result.value)
    if type(result) is not tuple:
        return 0
    return sum(len(entry.value) for entry in result if isinstance(entry, Entry))
