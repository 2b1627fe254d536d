r"""The format of the file store's log, and the keyspace that reading it gives.

    file    "holdfs1\n", then records
    record  u32 length of the body, u32 CRC-32 of the body, u32 CRC-32 of these eight bytes, body
    body    u8 kind, then its fields, big-endian

A log begins with a snapshot: one `SnapshotHead`, which announces how many `SavedLease` and
`SavedItem` follow it. After it comes every operation that changed something (`Performed`), and a
`Boot` for every time the machine was started anew. A snapshot is put in place whole, and each later
record is written in one piece, so a writer that is killed leaves at most the beginning of one
record at the very end. Since the length has a checksum of its own, such an unfinished record cannot
be confused with damage further up, and never hides the records behind a damaged one.

Leases are judged by the clock that counts from the machine's start; when the machine was started
anew, that clock began again, and all leases are over.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import TypeAlias, assert_never

from holdfast.errors import LeaseLost, PeerViolation, UsageError
from holdfast.ids import LeaseId
from holdfast.records import dataclass
from holdfast.store.keyspace import Keyspace, SavedItem, SavedLease, Snapshot
from holdfast.store.ops import AnyOp
from holdfast.store.wire import decode_op, encode_op

__all__ = [
    "HEAD_BYTES",
    "MAGIC",
    "RECORD_BYTES_MAX",
    "Boot",
    "Image",
    "Performed",
    "Record",
    "SnapshotHead",
    "decode_record",
    "encode_image",
    "encode_record",
    "record_size",
]

MAGIC = b"holdfs1\n"
ID_BYTES = 16
RECORD_BYTES_MAX = 32 * 1024 * 1024

_SIZES = struct.Struct(">II")
_CHECK = struct.Struct(">I")
HEAD_BYTES = _SIZES.size + _CHECK.size

_START = struct.Struct(f">{ID_BYTES}s{ID_BYTES}sdQQII")
_LEASE = struct.Struct(">Qdd")
_ITEM = struct.Struct(">QQH")  # revision, lease or 0, bytes of the key
_TIME = struct.Struct(">d")


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """The head of a snapshot. `store_id` stays when a log is replaced by a shorter one."""

    store_id: bytes
    boot_id: bytes
    now: float
    revision: int
    next_lease: int
    leases: int
    items: int


@dataclass(frozen=True, slots=True)
class Boot:
    """The machine was started anew."""

    boot_id: bytes


@dataclass(frozen=True, slots=True)
class Performed:
    """An operation that changed something, and the moment at which it was applied."""

    op: AnyOp
    now: float


Record: TypeAlias = SnapshotHead | SavedLease | SavedItem | Boot | Performed


def encode_record(record: Record) -> bytes:
    """Encode one record, head included; UsageError if it is larger than a record may be."""
    body = _encode_body(record)
    if len(body) > RECORD_BYTES_MAX:
        raise UsageError(
            f"an operation of {len(body)} bytes: at most {RECORD_BYTES_MAX} are allowed in one call"
        )
    sizes = _SIZES.pack(len(body), zlib.crc32(body))
    return sizes + _CHECK.pack(zlib.crc32(sizes)) + body


def record_size(data: bytes, at: int) -> int:
    """Return the bytes that the record at `at` takes in whole, as far as can be told.

    That is `HEAD_BYTES` while not even its head is there. PeerViolation if the head is damaged.
    """
    if len(data) - at < HEAD_BYTES:
        return HEAD_BYTES
    (check,) = _CHECK.unpack_from(data, at + _SIZES.size)
    if zlib.crc32(data[at : at + _SIZES.size]) != check:
        raise PeerViolation("the head of a record fails its checksum")
    length: int = _SIZES.unpack_from(data, at)[0]
    if length > RECORD_BYTES_MAX:
        raise PeerViolation(f"a record announces {length} bytes")
    return HEAD_BYTES + length


def decode_record(data: bytes, at: int) -> Record:
    """Decode the record at `at`, which is there in whole; PeerViolation if it is damaged."""
    length, check = _SIZES.unpack_from(data, at)
    body = data[at + HEAD_BYTES : at + HEAD_BYTES + length]
    if zlib.crc32(body) != check:
        raise PeerViolation("a record fails its checksum")
    try:
        return _decode_body(body)
    except (struct.error, UnicodeDecodeError):
        raise PeerViolation("a record does not have the fields of its kind") from None


def _encode_body(record: Record) -> bytes:
    match record:
        case SnapshotHead(store_id, boot_id, now, revision, next_lease, leases, items):
            return b"S" + _START.pack(store_id, boot_id, now, revision, next_lease, leases, items)
        case SavedLease(lease_id, ttl, ends_at):
            return b"L" + _LEASE.pack(lease_id, ttl, ends_at)
        case SavedItem(key, value, revision, lease):
            name = key.encode()
            return b"I" + _ITEM.pack(revision, lease or 0, len(name)) + name + value
        case Boot(boot_id):
            return b"B" + boot_id
        case Performed(op, now):
            return b"P" + _TIME.pack(now) + encode_op(op)
        case _:
            assert_never(record)


def _decode_body(body: bytes) -> Record:
    match body[:1]:
        case b"S":
            return SnapshotHead(*_START.unpack(body[1:]))
        case b"L":
            return SavedLease(*_LEASE.unpack(body[1:]))
        case b"I":
            revision, lease, size = _ITEM.unpack_from(body, 1)
            begin = 1 + _ITEM.size
            key = body[begin : begin + size].decode()
            return SavedItem(key, body[begin + size :], revision, LeaseId(lease) if lease else None)
        case b"B":
            return Boot(body[1:])
        case b"P":
            (now,) = _TIME.unpack_from(body, 1)
            return Performed(decode_op(body, 1 + _TIME.size), now)
        case kind:
            raise PeerViolation(f"a record is of the unknown kind {kind!r}")


class Image:
    """What a log says, fed with its records one after the other."""

    def __init__(self) -> None:
        self.store_id = self.boot_id = b""
        self.now = 0.0
        self.keyspace = Keyspace()
        self._start: SnapshotHead | None = None
        self._leases: list[SavedLease] = []
        self._items: list[SavedItem] = []
        self.complete = False
        """Whether the snapshot is there in whole."""

    @classmethod
    def empty(cls, store_id: bytes, boot_id: bytes) -> Image:
        """Make the image of a new log."""
        image = cls()
        image.feed(
            SnapshotHead(store_id, boot_id, now=0, revision=0, next_lease=1, leases=0, items=0)
        )
        return image

    def feed(self, record: Record) -> None:
        """Take the next record; PeerViolation if it cannot stand here."""
        match record:
            case SnapshotHead() if self._start is None:
                self._start = record
                self.store_id, self.boot_id = record.store_id, record.boot_id
                self.now = record.now
            case SavedLease() if self._start and not self.complete:
                self._leases.append(record)
            case SavedItem() if self._start and not self.complete:
                self._items.append(record)
            case Boot(boot_id) if self.complete:
                self.boot_id = boot_id
                self.keyspace.expire(math.inf)
                self.now = 0.0
            case Performed(op, now) if self.complete and now >= self.now:
                self.now = now
                try:
                    self.keyspace.apply(op, now)
                except (LeaseLost, UsageError) as error:
                    raise PeerViolation(f"an operation that was performed fails: {error}") from None
            case _:
                raise PeerViolation(f"a record {type(record).__name__} out of place")
        if not self.complete:
            self._finish()

    def _finish(self) -> None:
        """Load the snapshot if all of it has come."""
        start = self._start
        if start and (len(self._leases), len(self._items)) == (start.leases, start.items):
            snapshot = Snapshot(
                start.revision, start.next_lease, tuple(self._leases), tuple(self._items)
            )
            try:
                self.keyspace = Keyspace.load(snapshot)
            except UsageError as error:
                raise PeerViolation(str(error)) from None
            self._leases, self._items = [], []
            self.complete = True


def encode_image(image: Image) -> Iterator[bytes]:
    """Encode a log that holds nothing but the image's present state, piece by piece."""
    saved = image.keyspace.dump()
    yield MAGIC + encode_record(
        SnapshotHead(
            image.store_id,
            image.boot_id,
            image.now,
            saved.revision,
            saved.next_lease,
            len(saved.leases),
            len(saved.items),
        )
    )
    yield from map(encode_record, saved.leases)
    yield from map(encode_record, saved.items)
