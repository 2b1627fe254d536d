"""The bytes of torch's TCPStore protocol: requests, replies, and how both are read from a stream.

Theory. The protocol has no frames: a request is one opcode byte and its fields, and a reply is
bare fields whose shape follows from the request. So reading is written as generators that yield
the number of bytes they need next, are sent exactly those, and return what they read. A
generator keeps its place, so every byte is looked at once, however the stream is cut.

Integers are little-endian. Keys and values are bytes with a 64-bit length before them. There is
no error reply: the side that sees something wrong (`PeerViolation`) closes the connection.

Guarantees
    CW-1  A length is checked against its cap before a byte of what it announces is kept.
    CW-2  What a parser keeps of one request is at most `MESSAGE_BYTES_MAX`, and one read.
    CW-3  The requests that come out do not depend on how the bytes were cut.
    CW-4  Once a parser has found a violation it yields nothing more.
    CW-5  Short requests that were read once are remembered by their bytes, at most KNOWN_MAX of at
          most KNOWN_BYTES_MAX each: all ranks of a job send the same ones, and the second time no
          field is read. This changes nothing in what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar, assert_never

from holdfast.errors import PeerViolation
from holdfast.store.c10d.messages import (
    Add,
    Append,
    Barrier,
    CancelWait,
    Check,
    CompareSet,
    Delete,
    Get,
    ListKeys,
    MultiGet,
    MultiSet,
    NumKeys,
    Ping,
    QueueLen,
    QueuePop,
    QueuePush,
    Request,
    Set,
    Validate,
    Wait,
)

__all__ = [
    "CANCELLED",
    "KEYS_MAX",
    "KEY_BYTES_MAX",
    "KNOWN_BYTES_MAX",
    "KNOWN_MAX",
    "MAGIC",
    "MESSAGE_BYTES_MAX",
    "READY",
    "VALUE_BYTES_MAX",
    "FieldStream",
    "Fields",
    "KnownRequests",
    "RequestParser",
    "encode_bytes",
    "encode_i64",
    "encode_keys",
    "encode_request",
    "encode_u32",
    "read_i64",
    "read_key_list",
    "read_u8",
    "read_u32",
    "read_value",
    "read_values",
]

MAGIC = 0x3C85F7CE
KEY_BYTES_MAX = 8 * 1024
VALUE_BYTES_MAX = 8 * 1024 * 1024
KEYS_MAX = 131_072
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""What one request or one reply may hold in all; torch itself knows no such limit."""

KNOWN_MAX = 1024
KNOWN_BYTES_MAX = 256

READY = b"\x00"
CANCELLED = b"\x01"

R = TypeVar("R")
Fields: TypeAlias = Generator[int, bytes, R]
"""Yields how many bytes it needs, is sent exactly these, and returns what it read."""
KnownRequests: TypeAlias = dict[bytes, Request]
"""Requests that were read before, by their bytes; the parsers of a server share them."""


# Fields.


def read_u8() -> Fields[int]:
    """Read one byte."""
    return (yield 1)[0]


def read_u32() -> Fields[int]:
    """Read an unsigned number of 32 bits."""
    return int.from_bytes((yield 4), "little")


def read_i64() -> Fields[int]:
    """Read a signed number of 64 bits."""
    return int.from_bytes((yield 8), "little", signed=True)


def read_value(limit: int = MESSAGE_BYTES_MAX) -> Fields[bytes]:
    """Read a length of at most `limit`, then that many bytes."""
    size = int.from_bytes((yield 8), "little")
    if size > limit:
        raise PeerViolation(f"c10d: {size} bytes announced, at most {limit} are allowed")
    return (yield size)


def read_values(count: int) -> Fields[list[bytes]]:
    """Read this many values, all together at most MESSAGE_BYTES_MAX."""
    values: list[bytes] = []
    room = MESSAGE_BYTES_MAX
    for _ in range(count):
        values.append((yield from read_value(room)))
        room -= len(values[-1])
    return values


def read_key_list() -> Fields[list[bytes]]:
    """Read a number of keys, then these."""
    count = yield from read_i64()
    room = MESSAGE_BYTES_MAX
    # Each key costs its sender 8 bytes at least, so the room bounds the count as well.
    if not 0 <= count <= room // 8:
        raise PeerViolation(f"c10d: a list of {count} keys announced")
    keys: list[bytes] = []
    for _ in range(count):
        room -= 8
        keys.append((yield from read_value(min(room, KEY_BYTES_MAX))))
        room -= len(keys[-1])
    return keys


class FieldStream:
    """Bytes that have arrived and were not read yet."""

    __slots__ = ("_at", "_data")

    def __init__(self) -> None:
        self._data: bytes | bytearray = b""
        self._at = 0

    def __len__(self) -> int:
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Add bytes to the end."""
        if self._at == len(self._data):
            self._data = data  # the common case, a whole request in one read, copies nothing
        elif isinstance(self._data, bytearray):
            del self._data[: self._at]
            self._data += data
        else:
            self._data = bytearray(self._data[self._at :])
            self._data += data
        self._at = 0

    def take(self, size: int) -> bytes | None:
        """Take exactly this many bytes from the front, or None if they are not all there yet."""
        end = self._at + size
        if end > len(self._data):
            return None
        taken = bytes(self._data[self._at : end])
        self._at = end
        return taken


class RequestParser:
    """What one client sends, as requests. Feed it bytes, then call `next` until it gives None."""

    def __init__(self, known: KnownRequests | None = None) -> None:
        self._stream = FieldStream()
        self._claimed = 0
        self._validated = False
        self._failure: PeerViolation | None = None
        self._known: KnownRequests = {} if known is None else known
        self._between = False  # no byte of a request is held, and the client is validated
        self._fed: bytes | None = None  # what was fed since then, if it may be one request
        self._begin()

    def _begin(self) -> None:
        self._claimed = 0
        self._fields = self._request()
        self._need = next(self._fields)

    @property
    def validated(self) -> bool:
        """Whether the client has shown that it speaks this protocol."""
        return self._validated

    @property
    def held(self) -> int:
        """About how many bytes are kept for the request that is not complete yet."""
        return max(0, self._claimed - self._need) + len(self._stream)

    def recognize(self, data: bytes) -> Request | None:
        """Return the request that these bytes are, if it is known (CW-5).

        None if it is not, or if another request is not complete yet: then feed the bytes.
        """
        return self._known.get(data) if self._between else None

    def feed(self, data: bytes) -> None:
        """Take bytes as they came."""
        self._fed = data if self._between and len(data) <= KNOWN_BYTES_MAX else None
        self._between = False
        self._stream.feed(data)

    def close(self) -> None:
        """Release half a request now; the generator and this object hold each other."""
        self._fields.close()
        self._stream = FieldStream()

    def next(self) -> Request | None:
        """Return the next complete request, None if there is none; PeerViolation if it is bad."""
        if self._failure is not None:
            raise self._failure
        try:
            while (data := self._stream.take(self._need)) is not None:
                self._need = self._fields.send(data)
        except StopIteration as stop:
            request: Request = stop.value
            self._begin()
            self._completed(request)
            return request
        except PeerViolation as violation:
            self._failure = violation
            raise
        return None

    def _completed(self, request: Request) -> None:
        fed, self._fed = self._fed, None
        self._between = not len(self._stream)
        if self._between and fed is not None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[fed] = request

    # The grammar.

    def _request(self) -> Fields[Request]:
        opcode = (yield 1)[0]
        if not self._validated:
            if opcode != 0 or (yield from read_u32()) != MAGIC:
                raise PeerViolation("c10d: the connection does not begin with torch's magic number")
            self._validated = True
            return Validate()
        shape = _SHAPES.get(opcode)
        if shape is None:
            what = "a second VALIDATE" if opcode == 0 else f"unknown opcode {opcode}"
            raise PeerViolation(f"c10d: {what}")
        make, readers = shape
        fields = []
        for read in readers:
            fields.append((yield from read(self)))  # comprehensions cannot yield
        return make(*fields)

    def _claim(self, size: int) -> None:
        self._claimed += size
        if self._claimed > MESSAGE_BYTES_MAX:
            raise PeerViolation(f"c10d: a request of more than {MESSAGE_BYTES_MAX} bytes")

    def _bytes(self, what: str, limit: int) -> Fields[bytes]:
        size = int.from_bytes((yield 8), "little")
        if size > limit:
            raise PeerViolation(f"c10d: {what} of {size} bytes, at most {limit} are allowed")
        self._claim(8 + size)
        return (yield size)

    def _key(self) -> Fields[bytes]:
        return self._bytes("a key", KEY_BYTES_MAX)

    def _value(self) -> Fields[bytes]:
        return self._bytes("a value", VALUE_BYTES_MAX)

    def _count(self) -> Fields[int]:
        count = int.from_bytes((yield 8), "little")
        if count > KEYS_MAX:
            raise PeerViolation(f"c10d: {count} keys in one request, at most {KEYS_MAX}")
        return count

    def _keys(self) -> Fields[tuple[bytes, ...]]:
        keys = []
        for _ in range((yield from self._count())):
            keys.append((yield from self._key()))
        return tuple(keys)

    def _items(self) -> Fields[tuple[tuple[bytes, bytes], ...]]:
        items = []
        for _ in range((yield from self._count())):
            items.append(((yield from self._key()), (yield from self._value())))
        return tuple(items)

    def _u32(self) -> Fields[int]:
        return read_u32()

    def _i64(self) -> Fields[int]:
        return read_i64()


_KEY, _VALUE, _KEYS = RequestParser._key, RequestParser._value, RequestParser._keys
_ITEMS, _U32, _I64 = RequestParser._items, RequestParser._u32, RequestParser._i64

# What each opcode makes, and of which fields, in the order of the class's own.
_SHAPES: dict[int, tuple[Callable[..., Request], tuple[Callable[..., Fields[object]], ...]]] = {
    1: (Set, (_KEY, _VALUE)),
    2: (CompareSet, (_KEY, _VALUE, _VALUE)),
    3: (Get, (_KEY,)),
    4: (Add, (_KEY, _I64)),
    5: (Check, (_KEYS,)),
    6: (Wait, (_KEYS,)),
    7: (NumKeys, ()),
    8: (Delete, (_KEY,)),
    9: (Append, (_KEY, _VALUE)),
    10: (MultiGet, (_KEYS,)),
    11: (MultiSet, (_ITEMS,)),
    12: (CancelWait, ()),
    13: (Ping, (_U32,)),
    14: (QueuePush, (_KEY, _VALUE)),
    15: (QueuePop, (_KEY,)),
    16: (QueueLen, (_KEY,)),
    17: (ListKeys, ()),
    18: (Barrier, (_KEY, _I64)),
}


# Encoding.


def encode_u32(number: int) -> bytes:
    """Write an unsigned number of 32 bits."""
    return number.to_bytes(4, "little")


def encode_i64(number: int) -> bytes:
    """Write a signed number of 64 bits."""
    return number.to_bytes(8, "little", signed=True)


def encode_bytes(value: bytes | bytearray) -> bytes:
    """Write a key or a value: its length, then its bytes."""
    return len(value).to_bytes(8, "little") + value


def encode_keys(keys: Iterable[bytes]) -> bytes:
    """Write a number of keys, then each."""
    parts = [encode_bytes(key) for key in keys]
    return encode_i64(len(parts)) + b"".join(parts)


def encode_request(request: Request) -> bytes:
    """Write one request, whole."""
    match request:
        case Validate():
            return b"\x00" + encode_u32(MAGIC)
        case Set(key, value):
            return b"\x01" + encode_bytes(key) + encode_bytes(value)
        case CompareSet(key, expected, desired):
            return b"\x02" + b"".join(map(encode_bytes, (key, expected, desired)))
        case Get(key):
            return b"\x03" + encode_bytes(key)
        case Add(key, amount):
            return b"\x04" + encode_bytes(key) + encode_i64(amount)
        case Check(keys):
            return b"\x05" + encode_keys(keys)
        case Wait(keys):
            return b"\x06" + encode_keys(keys)
        case NumKeys():
            return b"\x07"
        case Delete(key):
            return b"\x08" + encode_bytes(key)
        case Append(key, value):
            return b"\x09" + encode_bytes(key) + encode_bytes(value)
        case MultiGet(keys):
            return b"\x0a" + encode_keys(keys)
        case MultiSet(items):
            fields = [encode_bytes(field) for item in items for field in item]
            return b"\x0b" + encode_i64(len(items)) + b"".join(fields)
        case CancelWait():
            return b"\x0c"
        case Ping(nonce):
            return b"\x0d" + encode_u32(nonce)
        case QueuePush(queue, value):
            return b"\x0e" + encode_bytes(queue) + encode_bytes(value)
        case QueuePop(queue):
            return b"\x0f" + encode_bytes(queue)
        case QueueLen(queue):
            return b"\x10" + encode_bytes(queue)
        case ListKeys():
            return b"\x11"
        case Barrier(key, world_size):
            return b"\x12" + encode_bytes(key) + encode_i64(world_size)
        case _:
            assert_never(request)
