"""A store that torch hosts: holdfast's operations over the TCPStore protocol.

The protocol is older and poorer than ours. What it cannot say is refused with a UsageError:
leases, watches, `compare_set` to absence or from an empty value. What it says less exactly:
    - It has no revisions: they are always 0.
    - `compare_set` answers with the value that is stored afterwards, not with its writer. `ok`
      is exact as long as no two clients write the same bytes to one key at the same moment; so
      candidates of an election must write values of their own.
    - Several keys are read at one moment if all of them exist and none is empty, otherwise one
      after the other; `list_prefix` lists first and reads then.
    - `append` returns the length found right after appending.
    - A key may be one byte shorter than elsewhere, since torch puts "/" before it. Keys that are
      not UTF-8 text cannot be named here and are neither counted nor listed.

Writes that torch's server does not answer are followed by a PING on the same connection: its
answer proves that they were applied. Every read has a deadline. A connection that failed in the
middle of a request is closed; reads go on with a new one, writes raise with `maybe_applied`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, assert_never, cast

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import (
    PeerViolation,
    StoreUnavailable,
    TimeoutExpired,
    Unavailable,
    UsageError,
)
from holdfast.net.address import Address
from holdfast.store.c10d import messages as c10d
from holdfast.store.c10d.line import REPLY_WITHIN_S, RETRY_S, ConnectionPool, ConnectionSlot, Line
from holdfast.store.c10d.space import parse_decimal
from holdfast.store.c10d.wire import (
    CANCELLED,
    KEY_BYTES_MAX,
    READY,
    Fields,
    encode_request,
    read_i64,
    read_key_list,
    read_u8,
    read_u32,
    read_value,
    read_values,
)
from holdfast.store.ops import (
    INT_MAX,
    INT_MIN,
    Add,
    AnyOp,
    Append,
    CompareSet,
    Count,
    Delete,
    DeletePrefix,
    Entry,
    Get,
    Guarded,
    LeaseGrant,
    LeaseKeep,
    LeaseRevoke,
    ListPrefix,
    MultiGet,
    MultiSet,
    Op,
    Set,
    Swap,
    Wait,
)
from holdfast.store.store import Store, Watch

__all__ = ["C10dStore"]

WAIT_SLICE_S = 2.0
"""A wait is renewed this often. It shows that the server lives, and torch's older server forgets
to wake the clients that wait for a key that compare_set creates."""

GRACE_S = 0.5
"""What an expired wait may take to end in order and to learn which keys are missing."""

CHECKS_IN_FLIGHT = 512
PROOF = 0x706F6F66
LEASES = "leases; keep keys that must expire in a tcp:// or etcd:// store"

R = TypeVar("R")


class C10dStore(Store):
    """A client of torch's TCPStore. Connects at the first call; torch's server may come later."""

    def __init__(self, address: Address, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.endpoint = f"c10d://{address}"
        self._clock = clock
        self._lines = ConnectionPool(self.endpoint, address, clock)
        self._shared = ConnectionSlot()  # for all calls but waits, which have lanes of their own

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        self._lines.check_open()
        return cast(R, self._dispatch(cast(AnyOp, op), deadline))

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        raise self._refusal("watches; poll with get, or wait for a key")

    def _close(self) -> None:
        self._lines.close()

    def _dispatch(self, op: AnyOp, deadline: Deadline) -> object:
        match op:
            case Get(key):
                return self._entries((key,), deadline)[0]
            case MultiGet(keys):
                return self._entries(keys, deadline)
            case Wait(keys):
                return self._wait(keys, deadline)
            case Set(key, value, lease):
                self._refuse_lease(lease)
                return self._tell(c10d.Set(_raw(key), value), deadline)
            case MultiSet(items, lease):
                self._refuse_lease(lease)
                pairs = tuple((_raw(key), value) for key, value in items)
                return self._tell(c10d.MultiSet(pairs), deadline)
            case Add(key, amount):
                return self._add(key, amount, deadline)
            case CompareSet():
                return self._compare_set(op, deadline)
            case Delete(key):
                return self._write(c10d.Delete(_raw(key)), read_i64, deadline) > 0
            case DeletePrefix(prefix):
                for key in self._list(prefix, deadline):
                    self._write(c10d.Delete(_raw(key)), read_i64, deadline)
                return 0
            case Append(key, value):
                return self._append(_raw(key), value, deadline)
            case Count(prefix):
                return len(self._list(prefix, deadline))
            case ListPrefix(prefix):
                entries = self._entries(self._list(prefix, deadline), deadline)
                return tuple(entry for entry in entries if entry is not None)
            case LeaseGrant() | LeaseKeep() | LeaseRevoke():
                raise self._refusal(LEASES)
            case Guarded():
                raise self._refusal("guarded writes; use a tcp:// store")
            case _:
                assert_never(op)

    # One operation each.

    def _entries(self, keys: Sequence[str], deadline: Deadline) -> tuple[Entry | None, ...]:
        values = self._read_all(self._shared, tuple(map(_raw, keys)), deadline)
        return tuple(
            None if value is None else Entry(key, value, 0)
            for key, value in zip(keys, values, strict=True)
        )

    def _append(self, key: bytes, value: bytes, deadline: Deadline) -> int:
        self._tell(c10d.Append(key, value), deadline)
        try:
            (grown,) = self._read_all(self._shared, (key,), deadline)
        except (StoreUnavailable, TimeoutExpired) as error:
            error.maybe_applied = True
            raise
        return len(grown or b"")

    def _add(self, key: str, amount: int, deadline: Deadline) -> int:
        request = c10d.Add(_raw(key), amount)
        try:
            total = self._write(request, read_i64, deadline)
        except StoreUnavailable as lost:
            self._blame_counter(key, lost, deadline)
            raise
        if INT_MIN <= total - amount <= INT_MAX:
            return total
        # The sum has wrapped around, and takes the same way back. -INT_MIN is itself in 64 bits.
        back = c10d.Add(request.key, amount if amount == INT_MIN else -amount)
        self._write(back, read_i64, deadline)
        raise UsageError(f"add: key {key!r:.80} would leave 64 bits when {amount} is added")

    def _blame_counter(self, key: str, lost: StoreUnavailable, deadline: Deadline) -> None:
        """Raise UsageError if the server disconnected because the key holds no number."""
        if not lost.maybe_applied:
            return
        try:
            (value,) = self._read_all(self._shared, (_raw(key),), deadline)
        except (Unavailable, TimeoutExpired):
            return  # the server is gone; `lost` says all that is known
        try:
            parse_decimal(b"0" if value is None else value)
        except PeerViolation:
            raise UsageError(
                f"add: key {key!r:.80} holds {(value or b'')[:40]!r}, which is no 64-bit integer"
            ) from None

    def _compare_set(self, op: CompareSet, deadline: Deadline) -> Swap:
        self._refuse_lease(op.lease)
        if op.desired is None:
            raise self._refusal("compare_set to absence (desired=None); use delete")
        if op.expected == b"":
            raise self._refusal("compare_set from an empty value; empty means absent there")
        key = _raw(op.key)
        # Read first: an answer that equals `desired` would not say whether it was there before.
        (before,) = self._read_all(self._shared, (key,), deadline)
        if before != op.expected or before == op.desired:
            return Swap(before == op.expected, before, 0)
        request = c10d.CompareSet(key, op.expected or b"", op.desired)
        stored = self._write(request, read_value, deadline)
        if stored == op.desired:
            return Swap(True, stored, 0)
        return Swap(False, None if stored == op.expected else stored, 0)

    def _list(self, prefix: str, deadline: Deadline) -> list[str]:
        found = self._ask(self._shared, encode_request(c10d.ListKeys()), read_key_list, deadline)
        start = b"/" + prefix.encode()
        keys = []
        for raw in found:
            if raw.startswith(start):
                try:
                    keys.append(raw[1:].decode())
                except UnicodeDecodeError:
                    continue  # not text, so not a key that our callers could name
        return sorted(keys)

    def _wait(self, keys: tuple[str, ...], deadline: Deadline) -> tuple[Entry, ...]:
        raw = tuple(map(_raw, keys))
        with self._lines.spare_lane() as lane:
            values = self._wait_all(lane, raw, deadline)
        missing = tuple(key for key, value in zip(keys, values, strict=True) if value is None)
        if missing:
            raise TimeoutExpired(
                f"wait: still missing {', '.join(map(repr, missing[:10]))}", waiting_for=missing
            )
        return tuple(Entry(key, value or b"", 0) for key, value in zip(keys, values, strict=True))

    def _wait_all(
        self, lane: ConnectionSlot, raw: tuple[bytes, ...], deadline: Deadline
    ) -> list[bytes | None]:
        """Wait for keys and read them; None for each that is missing at the deadline."""
        with contextlib.suppress(TimeoutExpired):
            while not deadline.passed():
                if self._wait_slice(lane, raw, deadline):
                    values = self._read_all(lane, raw, deadline)
                    if None not in values:
                        return values
                    # Written and deleted since, or the name of a queue: look again, not too fast.
                    self._clock.sleep(deadline.sooner(RETRY_S).remaining() or 0.0)
        try:
            return self._read_all(lane, raw, Deadline.after(GRACE_S, self._clock))
        except (Unavailable, TimeoutExpired):
            return [None] * len(raw)

    def _wait_slice(self, lane: ConnectionSlot, raw: tuple[bytes, ...], deadline: Deadline) -> bool:
        """Wait for a while; say whether the server says that all keys have been there."""

        def talk(line: Line) -> bool:
            line.send(encode_request(c10d.Wait(raw)), deadline.sooner(REPLY_WITHIN_S))
            try:
                return _said(line.read(read_u8(), deadline.sooner(WAIT_SLICE_S)), READY)
            except TimeoutError:
                pass
            limit = deadline.sooner(REPLY_WITHIN_S)
            if deadline.passed():
                limit = Deadline.after(GRACE_S, self._clock)
            line.send(encode_request(c10d.CancelWait()), limit)
            if line.read(read_u8(), limit) == CANCELLED[0]:
                return False
            # READY had left before the server heard of the cancelling, whose answer must follow.
            return _said(line.read(read_u8(), limit), CANCELLED)

        return self._lines.use(lane, talk, deadline, write=False)

    # Reading.

    def _read_all(
        self, lane: ConnectionSlot, keys: tuple[bytes, ...], deadline: Deadline
    ) -> list[bytes | None]:
        """Read keys, None for each that is missing.

        An empty answer may mean an empty value or none. So ask first which keys are there (torch's
        older server even disconnects on a missing one), and about those that are empty then, ask in
        a way that tells.
        """
        there: list[bytes] = []
        for start in range(0, len(keys), CHECKS_IN_FLIGHT):
            some = keys[start : start + CHECKS_IN_FLIGHT]
            checks = b"".join(encode_request(c10d.Check((key,))) for key in some)
            answers = self._ask(lane, checks, partial(_read_bytes, len(some)), deadline)
            there += [key for key, answer in zip(some, answers, strict=True) if answer == READY[0]]
        if not there:
            return [None] * len(keys)
        request = encode_request(c10d.MultiGet(tuple(there)))
        values = self._ask(lane, request, partial(read_values, len(there)), deadline)
        found: dict[bytes, bytes | None] = dict(zip(there, values, strict=True))
        for key, value in found.items():
            if not value:
                found[key] = self._read_exactly(lane, key, deadline)
        return [found.get(key) for key in keys]

    def _read_exactly(self, lane: ConnectionSlot, key: bytes, deadline: Deadline) -> bytes | None:
        """Read one key so that empty and missing differ.

        Exchanging a value that no key has for itself writes nothing. The answer is the stored
        value if there is one, and otherwise what was expected.
        """
        token = secrets.token_bytes(16)
        request = encode_request(c10d.CompareSet(key, token, token))
        stored = self._ask(lane, request, read_value, deadline)
        return None if stored == token else stored

    # Talking.

    def _ask(
        self,
        lane: ConnectionSlot,
        data: bytes,
        read: Callable[[], Fields[R]],
        deadline: Deadline,
        *,
        write: bool = False,
    ) -> R:
        """Send, and read the answer; what is no write goes over a new connection if need be."""

        def talk(line: Line) -> R:
            limit = deadline.sooner(REPLY_WITHIN_S)
            line.send(data, limit)
            return line.read(read(), limit)

        return self._lines.use(lane, talk, deadline, write=write)

    def _write(self, request: c10d.Request, read: Callable[[], Fields[R]], deadline: Deadline) -> R:
        return self._ask(self._shared, encode_request(request), read, deadline, write=True)

    def _tell(self, request: c10d.Request, deadline: Deadline) -> int:
        """Send a write that has no answer, and a PING whose answer proves that it was applied."""
        data = encode_request(request) + encode_request(c10d.Ping(PROOF))
        self._ask(self._shared, data, _read_proof, deadline, write=True)
        return 0  # torch's stores know no revisions

    def _refuse_lease(self, lease: object) -> None:
        if lease is not None:
            raise self._refusal(LEASES)

    def _refusal(self, what: str) -> UsageError:
        return UsageError(f"{self.endpoint}: torch's store protocol has no {what}")


def _raw(key: str) -> bytes:
    """Return the key as torch's clients name it."""
    raw = b"/" + key.encode()
    if len(raw) > KEY_BYTES_MAX:
        raise UsageError(
            f"key {key[:40]!r}…: {len(raw) - 1} bytes, at most {KEY_BYTES_MAX - 1} are allowed in "
            "a store of torch"
        )
    return raw


def _read_bytes(count: int) -> Fields[bytes]:
    return (yield count)


def _read_proof() -> Fields[None]:
    if (yield from read_u32()) != PROOF:
        raise PeerViolation("c10d: the server answered a ping with another number")


def _said(byte: int, wanted: bytes) -> bool:
    if byte != wanted[0]:
        raise PeerViolation(f"c10d: the server answered a wait with byte {byte}")
    return True
