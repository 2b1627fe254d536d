"""The log's format: what is written is read, and damage is told from what is unfinished."""

from __future__ import annotations

import struct
import zlib

import pytest

from holdfast.errors import PeerViolation, UsageError
from holdfast.ids import LeaseId
from holdfast.store.filelog import (
    HEAD_BYTES,
    MAGIC,
    RECORD_BYTES_MAX,
    Boot,
    Image,
    Performed,
    Record,
    SnapshotHead,
    decode_record,
    encode_image,
    encode_record,
    record_size,
)
from holdfast.store.keyspace import SavedItem, SavedLease
from holdfast.store.ops import Add, Delete, LeaseGrant, LeaseKeep, MultiSet, Set

ID, BOOT = b"s" * 16, b"b" * 16
RECORDS: list[Record] = [
    SnapshotHead(ID, BOOT, 12.5, 7, 3, 1, 2),
    SavedLease(LeaseId(2), 5.0, 17.25),
    SavedItem("é/key", b"\x00value", 7, LeaseId(2)),
    SavedItem("k", b"", 1, None),
    Boot(BOOT),
    Performed(Set("k", b"v", LeaseId(2)), 13.0),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    data = b"before" + encode_record(record) + b"after"
    assert record_size(data, 6) == len(data) - len("beforeafter")
    assert decode_record(data, 6) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_an_unfinished_record_announces_more_than_there_is(record: Record) -> None:
    data = encode_record(record)
    for end in range(len(data)):
        assert record_size(data[:end], 0) > end


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_damaged_bit_is_found(record: Record) -> None:
    data = encode_record(record)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PeerViolation, match="checksum"):
            _ = record_size(bytes(damaged), 0), decode_record(bytes(damaged), 0)


def framed(body: bytes) -> bytes:
    sizes = struct.pack(">II", len(body), zlib.crc32(body))
    return sizes + struct.pack(">I", zlib.crc32(sizes)) + body


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "unknown kind b''"),
        (b"?", "unknown kind b'?'"),
        (b"Sshort", "fields of its kind"),
        (b"I" + struct.pack(">QQH", 1, 0, 1) + b"\xff", "fields of its kind"),
        (b"P" + struct.pack(">d", 1.0) + b"\xff", "operation 255 is unknown"),
        (b"P", "fields of its kind"),
    ],
)
def test_a_sound_record_of_wrong_content_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(PeerViolation, match=message.replace("?", r"\?")):
        decode_record(framed(body), 0)


def test_records_have_a_largest_size() -> None:
    sizes = struct.pack(">II", RECORD_BYTES_MAX + 1, 0)
    head = sizes + struct.pack(">I", zlib.crc32(sizes))
    assert len(head) == HEAD_BYTES
    with pytest.raises(PeerViolation, match="announces 33554433 bytes"):
        record_size(head, 0)
    large = MultiSet(tuple((f"{n}", bytes(8 * 1024 * 1024)) for n in range(4)))
    with pytest.raises(UsageError, match="at most 33554432 are allowed in one call"):
        encode_record(Performed(large, 0.0))


def replayed(*records: Record) -> Image:
    image = Image()
    for record in records:
        image.feed(record)
    return image


def test_an_image_is_the_snapshot_and_what_was_performed_on_it() -> None:
    image = replayed(*RECORDS[:3])
    assert not image.complete
    image.feed(RECORDS[3])
    assert image.complete
    image.feed(Performed(Add("n", 5), 13.0))
    image.feed(Performed(LeaseGrant(1.0), 13.0))
    assert (image.store_id, image.boot_id, image.now) == (ID, BOOT, 13.0)
    assert image.keyspace.revision == 8
    assert [item.key for item in image.keyspace.dump().items] == ["é/key", "k", "n"]
    image.feed(Performed(Delete("k"), 17.25))  # by then the first lease is over
    assert [item.key for item in image.keyspace.dump().items] == ["n"]


def test_a_start_of_the_machine_ends_all_leases_and_begins_a_new_time() -> None:
    image = replayed(*RECORDS[:4], Boot(b"c" * 16))
    assert image.boot_id == b"c" * 16
    assert image.now == 0.0
    assert [item.key for item in image.keyspace.dump().items] == ["k"]
    assert image.keyspace.dump().leases == ()
    image.feed(Performed(Set("k", b""), 1.0))
    assert image.now == 1.0


def test_an_image_written_and_read_is_the_same() -> None:
    image = replayed(*RECORDS[:4], Performed(Set("x", b"1", LeaseId(2)), 14.0))
    data = b"".join(encode_image(image))
    assert data.startswith(MAGIC)
    again, at = Image(), len(MAGIC)
    while at < len(data):
        again.feed(decode_record(data, at))
        at += record_size(data, at)
    assert again.complete
    assert again.keyspace.dump() == image.keyspace.dump()
    assert (again.store_id, again.boot_id, again.now) == (ID, BOOT, 14.0)


def test_a_new_image_is_empty_and_complete() -> None:
    image = Image.empty(ID, BOOT)
    assert image.complete
    assert len(image.keyspace) == 0


EMPTY = SnapshotHead(ID, BOOT, 5.0, 0, 1, 0, 0)
OUT_OF_PLACE: list[list[Record]] = [
    [Boot(BOOT)],
    [Performed(Set("k", b""), 0.0)],
    [SavedItem("k", b"", 1, None)],
    [SavedLease(LeaseId(1), 1.0, 1.0)],
    [EMPTY, EMPTY],
    [EMPTY, SavedItem("k", b"", 1, None)],
    [EMPTY, SavedLease(LeaseId(1), 1.0, 1.0)],
    [EMPTY, Performed(Set("k", b""), 4.9)],
    [RECORDS[0], Performed(Set("k", b""), 99.0)],
]


@pytest.mark.parametrize("records", OUT_OF_PLACE)
def test_records_out_of_place_are_refused(records: list[Record]) -> None:
    image = replayed(*records[:-1])
    with pytest.raises(PeerViolation, match="out of place"):
        image.feed(records[-1])


def test_what_cannot_have_been_performed_is_refused() -> None:
    with pytest.raises(PeerViolation, match="was performed fails: lease 9"):
        replayed(EMPTY, Performed(LeaseKeep(LeaseId(9)), 6.0))
    with pytest.raises(PeerViolation, match="KS-1"):
        replayed(SnapshotHead(ID, BOOT, 0.0, 0, 1, 0, 1), SavedItem("k", b"", 5, None))
