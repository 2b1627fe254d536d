"""Operations and results as bytes: the payload of the native protocol and of the file's log.

Big-endian, fixed layouts, explicit lengths, no text parsing. A decoder takes exactly the bytes
that an encoder gives and raises PeerViolation for everything else: an unknown code, a length
that lies, bytes left over, text that is not UTF-8, or a value outside the limits of `ops.py`.

    key     u16 length, UTF-8           count   u32
    value   u32 length, bytes           lease   u64, 0 for none
    maybe   u32 length or 0xFFFFFFFF for none, bytes
    entry   key, value, u64 revision
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, assert_never

from holdfast.errors import PeerViolation, UsageError
from holdfast.ids import LeaseId
from holdfast.store import ops
from holdfast.store.ops import AnyOp, Entry, Lease, Op, Swap

__all__ = [
    "KNOWN_BYTES_MAX",
    "KNOWN_MAX",
    "Reader",
    "decode_op",
    "decode_result",
    "encode_op",
    "encode_result",
    "put_entries",
    "put_maybe",
    "put_text",
]

R = TypeVar("R")

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")
_F64 = struct.Struct(">d")
_NONE = 0xFFFFFFFF
_ENTRY_BYTES_MIN = 14

KNOWN_MAX = 1024
KNOWN_BYTES_MAX = 256


class Reader:
    """A cursor over received bytes; every step checks that the bytes are there."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def _number(self, kind: struct.Struct) -> Any:
        at = self._at
        self._at = at + kind.size
        try:
            return kind.unpack_from(self._data, at)[0]
        except struct.error:
            raise PeerViolation("a message ends too early") from None

    def u8(self) -> int:
        number: int = self._number(_U8)
        return number

    def u32(self) -> int:
        number: int = self._number(_U32)
        return number

    def u64(self) -> int:
        number: int = self._number(_U64)
        return number

    def i64(self) -> int:
        number: int = self._number(_I64)
        return number

    def f64(self) -> float:
        number: float = self._number(_F64)
        return number

    def flag(self) -> bool:
        value = self.u8()
        if value > 1:
            raise PeerViolation(f"a flag is {value}, must be 0 or 1")
        return value == 1

    def raw(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise PeerViolation("a message ends too early")
        found = self._data[self._at : end]
        self._at = end
        return found

    def text(self) -> str:
        try:
            return self.raw(self._number(_U16)).decode()
        except UnicodeDecodeError:
            raise PeerViolation("a key is not UTF-8") from None

    def value(self) -> bytes:
        return self.raw(self.u32())

    def long_text(self) -> str:
        try:
            return self.value().decode()
        except UnicodeDecodeError:
            raise PeerViolation("a text is not UTF-8") from None

    def maybe(self) -> bytes | None:
        size = self.u32()
        return None if size == _NONE else self.raw(size)

    def linger(self) -> float | None:
        """Read a duration that may be absent."""
        seconds = self.f64()
        return None if seconds == -1.0 else seconds

    def lease(self) -> LeaseId | None:
        number = self.u64()
        return LeaseId(number) if number else None

    def count(self, least: int, most: int = _NONE) -> int:
        """Read a count of things, at most `most`, that take `least` bytes at least.

        A count that cannot be true is refused before anything is allocated for it.
        """
        number = self.u32()
        if number > most or least * number > len(self._data) - self._at:
            raise PeerViolation(f"a message announces {number} items, more than it may hold")
        return number

    def texts(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.count(2, ops.KEYS_PER_CALL_MAX)))

    def entry(self) -> Entry:
        return Entry(self.text(), self.value(), self.u64())

    def entries(self) -> tuple[Entry, ...]:
        return tuple(self.entry() for _ in range(self.count(_ENTRY_BYTES_MIN)))

    def maybe_entry(self) -> Entry | None:
        return self.entry() if self.flag() else None

    @property
    def left(self) -> int:
        """How many bytes are not read yet."""
        return len(self._data) - self._at

    def rest(self) -> bytes:
        """Read everything that is left."""
        return self.raw(len(self._data) - self._at)

    def end(self) -> None:
        if self._at != len(self._data):
            raise PeerViolation(f"a message has {len(self._data) - self._at} bytes too many")


def put_text(text: str) -> bytes:
    """Encode a key or a prefix."""
    data = text.encode()
    return _U16.pack(len(data)) + data


def _texts(texts: tuple[str, ...]) -> bytes:
    return _U32.pack(len(texts)) + b"".join(map(put_text, texts))


def _value(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


def put_maybe(value: bytes | None) -> bytes:
    """Encode a value that may be absent."""
    return _U32.pack(_NONE) if value is None else _value(value)


def _lease(lease: LeaseId | None) -> bytes:
    return _U64.pack(lease or 0)


def _entry(entry: Entry) -> bytes:
    return put_text(entry.key) + _value(entry.value) + _U64.pack(entry.revision)


def _maybe_entry(entry: Entry | None) -> bytes:
    return b"\0" if entry is None else b"\1" + _entry(entry)


def put_entries(entries: tuple[Entry, ...]) -> bytes:
    """Encode entries, their count first."""
    return _U32.pack(len(entries)) + b"".join(map(_entry, entries))


def _pairs(items: tuple[tuple[str, bytes], ...]) -> bytes:
    return _U32.pack(len(items)) + b"".join(put_text(k) + _value(v) for k, v in items)


def _read_pairs(r: Reader) -> tuple[tuple[str, bytes], ...]:
    return tuple((r.text(), r.value()) for _ in range(r.count(6, ops.KEYS_PER_CALL_MAX)))


# For each operation: its code, how to write it, how to read it, how to write its result, how to
# read its result. One row holds everything that the wire knows about an operation.
_Row = tuple[
    int,
    Callable[[Any], bytes],
    Callable[[Reader], AnyOp],
    Callable[[Any], bytes],
    Callable[[Reader], Any],
]
_ROWS: dict[type[Any], _Row] = {
    ops.Get: (
        1,
        lambda op: put_text(op.key),
        lambda r: ops.Get(r.text()),
        _maybe_entry,
        Reader.maybe_entry,
    ),
    ops.Wait: (
        2,
        lambda op: _texts(op.keys),
        lambda r: ops.Wait(r.texts()),
        put_entries,
        Reader.entries,
    ),
    ops.Set: (
        3,
        lambda op: put_text(op.key) + _value(op.value) + _lease(op.lease),
        lambda r: ops.Set(r.text(), r.value(), r.lease()),
        _U64.pack,
        Reader.u64,
    ),
    ops.Add: (
        4,
        lambda op: put_text(op.key) + _I64.pack(op.amount),
        lambda r: ops.Add(r.text(), r.i64()),
        _I64.pack,
        Reader.i64,
    ),
    ops.CompareSet: (
        5,
        lambda op: (
            put_text(op.key) + put_maybe(op.expected) + put_maybe(op.desired) + _lease(op.lease)
        ),
        lambda r: ops.CompareSet(r.text(), r.maybe(), r.maybe(), r.lease()),
        lambda swap: _U8.pack(swap.ok) + put_maybe(swap.value) + _U64.pack(swap.revision),
        lambda r: Swap(r.flag(), r.maybe(), r.u64()),
    ),
    ops.Delete: (
        6,
        lambda op: put_text(op.key),
        lambda r: ops.Delete(r.text()),
        _U8.pack,
        Reader.flag,
    ),
    ops.Append: (
        7,
        lambda op: put_text(op.key) + _value(op.value),
        lambda r: ops.Append(r.text(), r.value()),
        _U64.pack,
        Reader.u64,
    ),
    ops.MultiGet: (
        8,
        lambda op: _texts(op.keys),
        lambda r: ops.MultiGet(r.texts()),
        lambda found: _U32.pack(len(found)) + b"".join(map(_maybe_entry, found)),
        lambda r: tuple(r.maybe_entry() for _ in range(r.count(1, ops.KEYS_PER_CALL_MAX))),
    ),
    ops.MultiSet: (
        9,
        lambda op: _pairs(op.items) + _lease(op.lease),
        lambda r: ops.MultiSet(_read_pairs(r), r.lease()),
        _U64.pack,
        Reader.u64,
    ),
    ops.Count: (
        10,
        lambda op: put_text(op.prefix),
        lambda r: ops.Count(r.text()),
        _U64.pack,
        Reader.u64,
    ),
    ops.ListPrefix: (
        11,
        lambda op: put_text(op.prefix),
        lambda r: ops.ListPrefix(r.text()),
        put_entries,
        Reader.entries,
    ),
    ops.LeaseGrant: (
        12,
        lambda op: _F64.pack(op.ttl) + _F64.pack(-1.0 if op.linger is None else op.linger),
        lambda r: ops.LeaseGrant(r.f64(), r.linger()),
        lambda lease: _U64.pack(lease.id) + _F64.pack(lease.ttl),
        lambda r: Lease(LeaseId(r.u64()), r.f64()),
    ),
    ops.LeaseKeep: (
        13,
        lambda op: _U64.pack(op.lease),
        lambda r: ops.LeaseKeep(LeaseId(r.u64())),
        _F64.pack,
        Reader.f64,
    ),
    ops.LeaseRevoke: (
        14,
        lambda op: _U64.pack(op.lease),
        lambda r: ops.LeaseRevoke(LeaseId(r.u64())),
        _U8.pack,
        Reader.flag,
    ),
    ops.Guarded: (
        15,
        lambda op: put_text(op.key) + _value(op.expected) + encode_op(op.op),
        lambda r: ops.Guarded(r.text(), r.value(), _guarded_op(r.rest())),
        # Its result is that of the write inside: see encode_result and decode_result.
        bytes,
        Reader.rest,
    ),
    ops.DeletePrefix: (
        16,
        lambda op: put_text(op.prefix),
        lambda r: ops.DeletePrefix(r.text()),
        _U64.pack,
        Reader.u64,
    ),
}
_ENCODE = {kind: (_U8.pack(row[0]), row[1]) for kind, row in _ROWS.items()}
_DECODE = {row[0]: row[2] for row in _ROWS.values()}
_GUARDABLE = frozenset(_ENCODE[kind][0] for kind in ops.KEY_WRITES)


def encode_op(op: Op[object]) -> bytes:
    """Encode an operation."""
    code, write = _ENCODE[type(op)]
    return code + write(op)


def decode_op(data: bytes, at: int = 0) -> AnyOp:
    """Decode the operation that fills `data` from `at` on, and check it against the limits.

    Of short ones, which clients repeat, the last KNOWN_MAX are remembered by their bytes.
    """
    if len(data) - at <= KNOWN_BYTES_MAX:
        return _decode_short(data[at:])
    return _decode(data, at)


@lru_cache(KNOWN_MAX)
def _decode_short(data: bytes) -> AnyOp:
    return _decode(data, 0)


def _decode(data: bytes, at: int) -> AnyOp:
    reader = Reader(data, at)
    code = reader.u8()
    read = _DECODE.get(code)
    if read is None:
        raise PeerViolation(f"operation {code} is unknown")
    op = read(reader)
    reader.end()
    try:
        _check(op)
    except UsageError as error:
        raise PeerViolation(f"an operation is out of bounds: {error}") from None
    return op


def _guarded_op(data: bytes) -> Any:
    """Decode the write behind a guard; what cannot be guarded, such as a guard, is not read."""
    if data[:1] not in _GUARDABLE:
        raise PeerViolation(f"operation {data[:1].hex() or 'none'} cannot be guarded")
    return decode_op(data)


def _kind(op: Op[object]) -> Any:
    """Return the type that decides what a result looks like: of a guarded write, the write's."""
    return type(op.op) if isinstance(op, ops.Guarded) else type(op)


def encode_result(op: Op[R], result: R) -> bytes:
    """Encode what an operation returned."""
    return _ROWS[_kind(op)][3](result)


def decode_result(op: Op[R], data: bytes, at: int = 0) -> R:
    """Decode what an operation returned; it fills `data` from `at` on."""
    reader = Reader(data, at)
    result: R = _ROWS[_kind(op)][4](reader)
    reader.end()
    return result


def _check(op: AnyOp) -> None:
    match op:
        case ops.Get() | ops.Add() | ops.Delete():
            ops.check_key(op.key)
        case ops.Set() | ops.Append():
            ops.check_key(op.key)
            ops.check_value(op.value)
        case ops.CompareSet():
            ops.check_key(op.key)
            ops.check_value(op.expected or b"")
            ops.check_value(op.desired or b"")
        case ops.Wait() | ops.MultiGet():
            ops.check_keys(op.keys)
        case ops.MultiSet():
            ops.check_keys(key for key, _ in op.items)
            for _, value in op.items:
                ops.check_value(value)
        case ops.Count() | ops.ListPrefix():
            ops.check_prefix(op.prefix)
        case ops.DeletePrefix():
            ops.check_key(op.prefix, "prefix")
        case ops.LeaseGrant():
            ops.check_ttl(op.ttl)
            ops.check_linger(op.linger)
        case ops.Guarded():
            ops.check_key(op.key)
            ops.check_value(op.expected)
        case ops.LeaseKeep() | ops.LeaseRevoke():
            pass
        case _:
            assert_never(op)
