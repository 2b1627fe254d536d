"""Watches on etcd: a stream of events, never trusted alone.

A watch reads what exists at a revision and then follows the events after it, on a connection of
its own and on the thread that calls `next`. Whenever the stream breaks, and every few seconds
anyway, it reads everything again and delivers the difference to what it has delivered: streams
have lost events before, a connection may be dead without saying so, and old revisions may have
been compacted away.
"""

from __future__ import annotations

import contextlib
import threading
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.clock import Deadline
from holdfast.errors import PeerViolation, TimeoutExpired, Unavailable, UsageError
from holdfast.store.etcd_client import EtcdClient, backoff_s
from holdfast.store.etcd_gateway import Message, decoding, watch_request
from holdfast.store.etcd_http import (
    HttpConnection,
    Lost,
    NoAnswer,
    NotSent,
    ReplyParser,
    Request,
    parse_object,
)
from holdfast.store.ops import Change, Entry
from holdfast.store.store import Watch

__all__ = ["REREAD_S", "EtcdWatch", "Event", "EventStream", "Snapshot"]

REREAD_S = 5.0
"""How often what a stream should have told is read anyway."""

_RECONNECT_S = 0.25
_LINE_BYTES_MAX = 1 << 28
_READS_AT_ONCE = 64

Snapshot = Callable[[Deadline], tuple[int, list[Entry]]]
"""Reads everything that is watched: the revision of the store, and the entries."""


class Event(NamedTuple):
    """A key was written, or deleted if there is no value, at a revision."""

    key: bytes
    value: bytes | None
    revision: int


class EventStream:
    """The events of some keys or ranges from a revision on. One reader; `shut` from anywhere."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._connection: HttpConnection | None = None
        self._parser = ReplyParser()
        self._partial = bytearray()

    def open(
        self, ranges: Sequence[tuple[bytes, bytes]], revision: int, deadline: Deadline
    ) -> None:
        """Ask for the events. NotSent or Lost."""
        self.close()
        self._connection = connection = self._client.new_connection()
        body = watch_request(ranges, revision)
        # A member that is cut off from the others ends the stream instead of keeping silent.
        request = Request("POST", "/v3/watch", body, headers=("Grpc-Metadata-hasleader: true",))
        self._partial.clear()
        try:
            connection.open(deadline)
            self._client.check_open()
            self._parser = connection.send(request, deadline)
        except (NotSent, Lost):
            self._client.failed_at(connection.address)
            raise

    @property
    def is_open(self) -> bool:
        """Whether there is a stream to read from."""
        return self._connection is not None

    def ready(self) -> bool:
        """Say whether `events` would return, or fail, without waiting."""
        return self._connection is not None and self._connection.readable()

    def events(self, deadline: Deadline) -> list[Event]:
        """Return the next events, perhaps none; NoAnswer at the deadline, Lost at the end."""
        if self._connection is None:
            raise Lost("the stream is closed")
        self._partial += self._connection.read_body(self._parser, deadline)
        if len(self._partial) > _LINE_BYTES_MAX:
            raise PeerViolation(f"an event of more than {_LINE_BYTES_MAX} bytes")
        whole, newline, rest = self._partial.rpartition(b"\n")
        if not newline:
            return []
        self._partial = bytearray(rest)
        found: list[Event] = []
        for line in whole.split(b"\n"):
            if line:
                found.extend(self._events_of(bytes(line)))
        return found

    def shut(self) -> None:
        """Wake the reader."""
        if self._connection is not None:
            self._connection.shut()

    def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _events_of(self, line: bytes) -> list[Event]:
        message = parse_object(line)
        result = message.get("result")
        if not isinstance(result, dict) or result.get("canceled"):
            # Compacted, no leader, or whatever: reading again and asking anew cures them all.
            why = str(message)[:160]
            raise Lost(f"etcd ended the watch: {why}")
        with decoding():
            return [_event(item) for item in result.get("events", ())]


def _event(item: Message) -> Event:
    kv = item["kv"]
    gone = item.get("type") == "DELETE"
    value = None if gone else b64decode(kv.get("value", ""))
    return Event(b64decode(kv["key"]), value, int(kv["mod_revision"]))


class EtcdWatch(Watch):
    """See the module's docstring."""

    def __init__(
        self,
        client: EtcdClient,
        name: str,
        span: tuple[bytes, bytes],
        key_of: Callable[[bytes], str],
        snapshot: Snapshot,
        forget: Callable[[EtcdWatch], None],
    ) -> None:
        self._client = client
        self._name = name
        self._span = span
        self._key_of = key_of
        self._snapshot = snapshot
        self._forget = forget
        self._stream = EventStream(client)
        self._closed = threading.Event()
        self._reading = threading.Lock()  # held by the thread that is in `next`
        # The newest change of each key that was not read yet, in order of arrival.
        self._pending: dict[str, Change] = {}
        # The keys that exist as far as was told, and the revision at which each was written.
        self._known: dict[str, int] = {}
        self._floor = 0  # everything up to this revision has been told
        self._reread_at = 0.0

    def start(self, deadline: Deadline) -> None:
        """Read what exists and begin to follow; raise as the store's operations do."""
        with self._reading:
            self._merge(*self._snapshot(deadline))
            with contextlib.suppress(NotSent, Lost):  # `next` will try again
                self._connect(deadline)

    def close(self) -> None:
        self._closed.set()
        self._stream.shut()
        self._forget(self)
        self._reap()

    def _next(self, deadline: Deadline) -> Change:
        remaining = deadline.remaining()
        patience = threading.TIMEOUT_MAX if remaining is None else remaining
        if not self._reading.acquire(timeout=min(patience, threading.TIMEOUT_MAX)):
            raise self._too_late("another thread reads it")
        try:
            return self._await_change(deadline)
        finally:
            self._reading.release()
            if self._closed.is_set():
                self._reap()

    def _reap(self) -> None:
        """Close the stream unless somebody reads; that one then comes here himself."""
        if self._reading.acquire(blocking=False):
            try:
                self._stream.close()
            finally:
                self._reading.release()

    # Below, the caller holds `_reading`.

    def _await_change(self, deadline: Deadline) -> Change:
        failure: Unavailable | None = None
        rounds = 0
        while True:
            if self._closed.is_set():
                raise UsageError(f"the watch of {self._name!r:.80} is closed")
            self._client.check_open()
            try:
                self._take_what_came()
                if self._pending:
                    return self._pending.pop(next(iter(self._pending)))
                self._follow(deadline)
                if self._pending:
                    continue
            except NoAnswer:
                pass  # nothing came in time
            except (NotSent, Lost) as error:
                self._stream.close()
                failure, rounds = error, rounds + 1
                pause = deadline.sooner(backoff_s(rounds, self._client.rng))
                self._closed.wait(pause.remaining())
            if deadline.passed():
                raise self._too_late(str(failure) if failure else "no change")

    def _take_what_came(self) -> None:
        """Merge the events that are already here, so that what is delivered is the newest."""
        for _ in range(_READS_AT_ONCE):
            if not self._stream.ready():
                return
            self._apply(self._stream.events(self._soon()))

    def _follow(self, deadline: Deadline) -> None:
        """Wait for events; reconnect and read again when it is time."""
        now = self._client.clock.monotonic()
        if not self._stream.is_open or now >= self._reread_at:
            # Somebody who polls with a timeout of 0 must come to a new connection, too.
            remaining = deadline.remaining()
            grace = None if remaining is None else max(remaining, _RECONNECT_S)
            self._reread(Deadline.after(grace, self._client.clock))
            return
        self._apply(self._stream.events(deadline.sooner(self._reread_at - now)))

    def _reread(self, deadline: Deadline) -> None:
        """Read everything, note the difference, and make sure that there is a stream."""
        try:
            revision, entries = self._snapshot(deadline)
        except (TimeoutExpired, Unavailable) as error:
            raise Lost(str(error)) from None
        if self._merge(revision, entries) or not self._stream.is_open:
            self._connect(deadline)  # anew: a stream that missed something is not trusted

    def _merge(self, revision: int, entries: list[Entry]) -> bool:
        """Note how the entries differ from what was told; say whether they do."""
        changes = [
            Change(*entry) for entry in entries if entry.revision > self._known.get(entry.key, 0)
        ]
        gone = self._known.keys() - {entry.key for entry in entries}
        changes += [Change(key, None, revision) for key in sorted(gone)]
        for change in changes:
            self._note(change)
        self._floor = revision
        self._reread_at = self._client.clock.monotonic() + REREAD_S
        return bool(changes)

    def _connect(self, deadline: Deadline) -> None:
        self._stream.open([self._span], self._floor + 1, deadline)

    def _apply(self, events: list[Event]) -> None:
        for event in events:
            with decoding():
                key = self._key_of(event.key)
            if event.revision > max(self._floor, self._known.get(key, 0)):
                self._note(Change(key, event.value, event.revision))

    def _note(self, change: Change) -> None:
        self._pending.pop(change.key, None)
        self._pending[change.key] = change
        if change.value is None:
            self._known.pop(change.key, None)
        else:
            self._known[change.key] = change.revision

    def _soon(self) -> Deadline:
        return Deadline.after(_RECONNECT_S, self._client.clock)

    def _too_late(self, why: str) -> TimeoutExpired:
        return TimeoutExpired(
            f"watch of {self._name!r:.80}: {why} in time", waiting_for=(self._name,)
        )
