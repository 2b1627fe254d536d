"""What torch's TCPStore requests mean: keys, queues, waits and barriers of one key space.

Rule 1: everything that changes what torch's clients see is in this file.
Rule 2: this file performs no I/O and reads no clock; waits have no time-outs on this side.

Theory. Each request is applied whole, in the order of arrival. A wait is a countdown: when it
begins, the missing keys are noted, and the first write to each ticks it off, even if the key is
deleted afterwards. A barrier is a counter under its key whose waiters are released by the last
arrival, or by any plain write to that key.

Where torch's two servers differ, this follows the newer one (a missing key reads as empty), and
is stricter in four ways: a bad handshake closes the connection at once; COMPARE_SET wakes waiters
only if the key then exists; a woken waiter leaves every list; a queue that is not empty counts
as there.

Guarantees
    CS-1  A request that raises changed nothing that another connection can see.
    CS-2  CANCEL_WAIT is answered with exactly one CANCELLED, and no READY follows it.
    CS-3  A connection has at most one wait; `disconnect` leaves no trace of it.
    CS-4  What is kept costs at most `max_bytes`: keys, values, queues and waits together.
    CS-5  A waiter is answered exactly once, when the last key that it missed is written.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from holdfast.errors import InternalError, PeerViolation
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
from holdfast.store.c10d.wire import (
    CANCELLED,
    MESSAGE_BYTES_MAX,
    READY,
    encode_bytes,
    encode_i64,
    encode_keys,
    encode_u32,
)

__all__ = ["DEFAULT_MAX_BYTES", "C10dSpace", "Reply", "parse_decimal"]

DEFAULT_MAX_BYTES = 256 * 1024 * 1024
ITEM_BYTES = 256
"""What Python needs for one kept thing beside its bytes; a generous estimate."""

Reply: TypeAlias = tuple[int, bytes]
"""A connection, and what to send to it."""

_DECIMAL = re.compile(rb"[ \t\n\v\f\r]*([+-]?)0*([0-9]*)")
_DIGITS_MAX = 19
_I64_MIN, _I64_MAX = -(1 << 63), (1 << 63) - 1


def parse_decimal(value: bytes | bytearray) -> int:
    """Read a number as C's strtoll does: blanks, a sign, digits, and whatever follows is ignored.

    PeerViolation if there are no digits, or if the number does not fit in 64 bits.
    """
    if value.isdigit() and len(value) < _DIGITS_MAX:
        return int(value)  # what adding stores, nearly always
    found = _DECIMAL.match(value)
    sign, digits = found.groups() if found is not None else (b"", b"")
    if found is None or not found[0][-1:].isdigit():
        raise PeerViolation(f"c10d: {bytes(value[:40])!r} is not a decimal number")
    number = int(sign + (digits or b"0")) if len(digits) <= _DIGITS_MAX else 1 << 64
    if number != _wrapped(number):
        raise PeerViolation(f"c10d: {bytes(value[:40])!r} does not fit in 64 bits")
    return number


def _wrapped(number: int) -> int:
    """Bring a sum back into 64 bits, as the hardware does."""
    return (number - _I64_MIN) % (1 << 64) + _I64_MIN


@dataclass(slots=True)
class _Countdown:
    missing: set[bytes]
    cost: int


class C10dSpace:
    """One key space of torch's protocol. Not thread-safe; performs no I/O."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        # An appended value becomes a bytearray, so that many small appends cost O(1) each.
        self._values: dict[bytes, bytes | bytearray] = {}
        self._queues: dict[bytes, deque[bytes]] = {}  # none of them empty
        self._waits: dict[int, _Countdown] = {}
        # The connections that miss a key, the one that has waited longest first.
        self._waiters: dict[bytes, dict[int, None]] = {}

    @property
    def used(self) -> int:
        """What the kept things cost, in bytes."""
        return self._used

    # The machine.

    def handle(self, conn: int, request: Request) -> list[Reply]:
        """Apply one request of a connection; return what is to be sent, and to which connections.

        PeerViolation if the connection must be closed instead.
        """
        match request:
            case Get(key):
                return [(conn, encode_bytes(self._values.get(key, b"")))]
            case Set(key, value):
                self._put(key, value)
                return self._wake(key)
            case Add(key, amount):
                total = self._count(key, amount)
                self._put(key, b"%d" % total)
                reply = (conn, encode_i64(total))
                return [reply, *self._wake(key)] if key in self._waiters else [reply]
            case Wait(keys):
                return self._wait(conn, keys)
            case Check(keys):
                return [(conn, READY if all(map(self._is_there, keys)) else b"\x01")]
            case CompareSet():
                return self._compare_set(conn, request)
            case Delete(key):
                return [(conn, encode_i64(self._delete(key)))]
            case Append(key, value):
                self._append(key, value)
                return self._wake(key)
            case MultiGet(keys):
                return [(conn, self._multi_get(keys))]
            case MultiSet(items):
                return self._multi_set(items)
            case CancelWait():
                self.disconnect(conn)
                return [(conn, CANCELLED)]
            case Ping(nonce):
                return [(conn, encode_u32(nonce))]
            case QueuePush(queue, value):
                return self._push(queue, value)
            case QueuePop(queue):
                return [(conn, self._pop(queue))]
            case QueueLen(queue):
                return [(conn, encode_i64(len(self._queues.get(queue, ()))))]
            case NumKeys():
                return [(conn, encode_i64(len(self._values)))]
            case ListKeys():
                self._check_reply(8 + sum(8 + len(key) for key in self._values))
                return [(conn, encode_keys(self._values))]
            case Barrier(key, world_size):
                return self._barrier(conn, key, world_size)
            case Validate():
                return []  # the parser has seen that it was the first, and right
            case _:
                assert_never(request)

    def disconnect(self, conn: int) -> None:
        """Forget the wait of a connection, if it has one."""
        countdown = self._waits.pop(conn, None)
        if countdown is None:
            return
        self._used -= countdown.cost
        for key in countdown.missing:
            self._forget_waiter(key, conn)

    def check_invariants(self) -> None:
        """InternalError if the parts contradict each other; for tests."""
        cost = sum(len(key) + len(value) + ITEM_BYTES for key, value in self._values.items())
        for name, queue in self._queues.items():
            cost += sum(len(name) + len(value) + ITEM_BYTES for value in queue)
        cost += sum(countdown.cost for countdown in self._waits.values())
        pairs = {(key, conn) for key, conns in self._waiters.items() for conn in conns}
        if pairs != {(key, c) for c, wait in self._waits.items() for key in wait.missing}:
            raise InternalError("c10d: the lists of waiters and the waits differ")
        if not all(self._queues.values()) or not all(self._waiters.values()):
            raise InternalError("c10d: an empty queue or list of waiters was kept")
        if not all(wait.missing for wait in self._waits.values()):
            raise InternalError("c10d: a wait that misses nothing was kept")
        if cost != self._used or cost > self._max_bytes:
            raise InternalError(f"c10d: {cost} bytes are kept, {self._used} were counted")

    # One request each.

    def _wait(self, conn: int, keys: Iterable[bytes]) -> list[Reply]:
        self._check_no_wait(conn)
        values, queues = self._values, self._queues
        missing = {key for key in keys if key not in values and key not in queues}
        if not missing:
            return [(conn, READY)]
        self._begin_wait(conn, missing)
        return []

    def _compare_set(self, conn: int, request: CompareSet) -> list[Reply]:
        key, stored = request.key, self._values.get(request.key)
        if stored is None and request.expected:
            return [(conn, encode_bytes(request.expected))]
        if stored is None or stored == request.expected:
            self._put(key, request.desired)
        return [(conn, encode_bytes(self._values[key])), *self._wake(key)]

    def _delete(self, key: bytes) -> int:
        value = self._values.pop(key, None)
        if value is None:
            return 0
        self._used -= len(key) + len(value) + ITEM_BYTES
        return 1

    def _append(self, key: bytes, value: bytes) -> None:
        stored = self._values.get(key)
        if stored is None:
            self._put(key, value)
            return
        if len(stored) + len(value) > MESSAGE_BYTES_MAX:
            raise PeerViolation(f"c10d: a value would grow beyond {MESSAGE_BYTES_MAX} bytes")
        self._check_room(len(value))
        if not isinstance(stored, bytearray):
            stored = self._values[key] = bytearray(stored)
        stored += value
        self._used += len(value)

    def _multi_get(self, keys: tuple[bytes, ...]) -> bytes:
        values = [self._values.get(key, b"") for key in keys]
        self._check_reply(sum(8 + len(value) for value in values))
        return b"".join(map(encode_bytes, values))

    def _multi_set(self, items: tuple[tuple[bytes, bytes], ...]) -> list[Reply]:
        last = dict(items)
        self._check_room(sum(self._growth(key, value) for key, value in last.items()))
        replies: list[Reply] = []
        for key, value in last.items():
            self._used += self._growth(key, value)
            self._values[key] = value
            replies += self._wake(key)
        return replies

    def _push(self, queue: bytes, value: bytes) -> list[Reply]:
        cost = len(queue) + len(value) + ITEM_BYTES
        self._check_room(cost)
        self._used += cost
        self._queues.setdefault(queue, deque()).append(value)
        for conn in self._waiters.get(queue, ()):
            return self._tick(conn, queue)
        return []

    def _pop(self, name: bytes) -> bytes:
        queue = self._queues.get(name)
        if queue is None:
            return encode_i64(0)
        length = len(queue)
        value = queue.popleft()
        self._used -= len(name) + len(value) + ITEM_BYTES
        if not queue:
            del self._queues[name]
        return encode_i64(length) + encode_bytes(value)

    def _barrier(self, conn: int, key: bytes, world_size: int) -> list[Reply]:
        self._check_no_wait(conn)
        arrived = self._count(key, 1)
        if arrived >= world_size:
            self._put(key, b"%d" % arrived)
            return [(conn, READY), *self._wake(key)]
        self._begin_wait(conn, {key})
        self._put(key, b"%d" % arrived)
        return []

    # Parts.

    def _is_there(self, key: bytes) -> bool:
        return key in self._values or key in self._queues

    def _count(self, key: bytes, amount: int) -> int:
        stored = self._values.get(key)
        total = amount if stored is None else amount + parse_decimal(stored)
        return total if _I64_MIN <= total <= _I64_MAX else _wrapped(total)

    def _growth(self, key: bytes, value: bytes) -> int:
        stored = self._values.get(key)
        if stored is None:
            return len(key) + len(value) + ITEM_BYTES
        return len(value) - len(stored)

    def _put(self, key: bytes, value: bytes) -> None:
        growth = self._growth(key, value)
        if growth:
            self._check_room(growth)
            self._used += growth
        self._values[key] = value

    def _check_room(self, growth: int) -> None:
        if growth > 0 and self._used + growth > self._max_bytes:
            raise PeerViolation(f"c10d: the store is full, at most {self._max_bytes} bytes fit")

    def _check_reply(self, size: int) -> None:
        if size > MESSAGE_BYTES_MAX:
            raise PeerViolation(f"c10d: a reply of {size} bytes, at most {MESSAGE_BYTES_MAX}")

    def _check_no_wait(self, conn: int) -> None:
        if conn in self._waits:
            raise PeerViolation("c10d: a second wait while one is outstanding")

    def _begin_wait(self, conn: int, missing: set[bytes]) -> None:
        cost = sum(len(key) + ITEM_BYTES for key in missing)
        self._check_room(cost)
        self._used += cost
        self._waits[conn] = _Countdown(missing, cost)
        for key in missing:
            self._waiters.setdefault(key, {})[conn] = None

    def _wake(self, key: bytes) -> list[Reply]:
        """Tick the key off for every connection that misses it."""
        waiters = self._waiters.get(key)
        if waiters is None:
            return []
        return [reply for conn in list(waiters) for reply in self._tick(conn, key)]

    def _tick(self, conn: int, key: bytes) -> list[Reply]:
        countdown = self._waits[conn]
        countdown.missing.discard(key)
        self._forget_waiter(key, conn)
        if countdown.missing:
            return []
        self.disconnect(conn)
        return [(conn, READY)]

    def _forget_waiter(self, key: bytes, conn: int) -> None:
        waiters = self._waiters[key]
        del waiters[conn]
        if not waiters:
            del self._waiters[key]
