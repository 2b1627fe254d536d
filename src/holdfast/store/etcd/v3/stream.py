"""The events of etcd's v3 API: one connection, which the watch or wait that follows them owns."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable

from holdfast.clock import Deadline
from holdfast.errors import PeerViolation
from holdfast.store.etcd.http.cluster import ATTEMPT_S, EtcdClient
from holdfast.store.etcd.http.connection import HttpConnection, HttpRequest, Lost, NotSent
from holdfast.store.etcd.http.reply import ReplyParser, decoding, parse_object
from holdfast.store.etcd.v3.gateway import Message, watch_request
from holdfast.store.ops import Change

__all__ = ["EventStream"]

_LINE_BYTES_MAX = 1 << 28


class EventStream:
    """The changes of a key or a range, from a revision on. A `Source` of `EtcdWatch`.

    `span` is the key, and the end of the range or nothing; `key_of` turns etcd's key into the
    store's. One thread reads; any may call `shut`.
    """

    def __init__(
        self, client: EtcdClient, span: tuple[bytes, bytes], key_of: Callable[[bytes], str]
    ) -> None:
        self._client = client
        self._span = span
        self._key_of = key_of
        self._connection: HttpConnection | None = None
        self._parser = ReplyParser()
        self._partial = bytearray()

    def open(self, revision: int, deadline: Deadline) -> None:
        """Ask for the changes from `revision` on. NotSent or Lost."""
        self.close()
        self._connection = connection = self._client.new_connection()
        # A member that is cut off from the others ends the stream instead of keeping silent.
        leader = "Grpc-Metadata-hasleader: true"
        body = watch_request(*self._span, revision)
        limit = deadline.sooner(ATTEMPT_S)
        self._partial.clear()
        try:
            connection.open(limit)
            self._client.check_open()
            self._parser = connection.send(
                HttpRequest("POST", "/v3/watch", body, headers=(leader,)), limit
            )
        except (NotSent, Lost):
            self._client.failed_at(connection.address)
            raise

    @property
    def is_open(self) -> bool:
        """Whether there is a stream to read from."""
        return self._connection is not None

    def ready(self) -> bool:
        """Say whether `changes` would not wait."""
        return self._connection is not None and self._connection.readable()

    def changes(self, deadline: Deadline) -> list[Change]:
        """Read once, and return the changes that are whole, perhaps none.

        NoAnswer at the deadline; Lost when the stream ends.
        """
        if self._connection is None:
            raise Lost("the stream of events is closed")
        self._partial += self._connection.read_body(self._parser, deadline)
        self._parser.forget_size()
        if self._parser.done or self._parser.status not in (0, 200):
            raise Lost(f"{self._connection.address} ended the stream of events")
        if len(self._partial) > _LINE_BYTES_MAX:
            raise PeerViolation(f"an event of more than {_LINE_BYTES_MAX} bytes")
        whole, newline, rest = self._partial.rpartition(b"\n")
        if not newline:
            return []
        self._partial = bytearray(rest)
        lines = [bytes(line) for line in whole.split(b"\n") if line]
        return [change for line in lines for change in self._changes_in(line)]

    def shut(self) -> None:
        """Wake the reader."""
        connection = self._connection
        if connection is not None:
            connection.shut()

    def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _changes_in(self, line: bytes) -> list[Change]:
        message = parse_object(line)
        result = message.get("result")
        if not isinstance(result, dict) or result.get("canceled"):
            # Compacted, no leader, or whatever: reading again and asking anew cures them all.
            raise Lost(f"etcd ended the watch: {str(message)[:160]}")
        with decoding():
            return [self._change(item) for item in result.get("events", ())]

    def _change(self, event: Message) -> Change:
        kv = event["kv"]
        gone = event.get("type") == "DELETE"
        value = None if gone else b64decode(kv.get("value", ""))
        return Change(self._key_of(b64decode(kv["key"])), value, int(kv["mod_revision"]))
