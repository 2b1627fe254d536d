"""The operations of a store, as data: what a client asks and what it gets.

One closed union, `AnyOp`. A backend performs an operation; `keyspace.py` defines what that
means. `Op[R]` carries the type of its result, so `perform(Add("n", 1))` is an `int` to mypy.

`Wait` is the only operation that may not be answered at once.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeAlias, TypeVar

from holdfast.errors import UsageError
from holdfast.ids import LeaseId
from holdfast.records import dataclass

__all__ = [
    "BYTES_MAX",
    "INT_MAX",
    "INT_MIN",
    "KEYS_MAX",
    "KEYS_PER_CALL_MAX",
    "KEY_BYTES_MAX",
    "KEY_WRITES",
    "LEASES_MAX",
    "TTL_MAX_S",
    "VALUE_BYTES_MAX",
    "WRITES",
    "Add",
    "AnyOp",
    "Append",
    "Change",
    "CompareSet",
    "Count",
    "Delete",
    "DeletePrefix",
    "Entry",
    "Get",
    "Guarded",
    "KeyWrite",
    "Lease",
    "LeaseGrant",
    "LeaseKeep",
    "LeaseRevoke",
    "ListPrefix",
    "MultiGet",
    "MultiSet",
    "Op",
    "Set",
    "Swap",
    "Wait",
    "check_key",
    "check_keys",
    "check_linger",
    "check_prefix",
    "check_ttl",
    "check_value",
]

KEY_BYTES_MAX = 8 * 1024
VALUE_BYTES_MAX = 8 * 1024 * 1024
KEYS_PER_CALL_MAX = 65_536
# Of a whole store, where holdfast keeps it: etcd has a quota of its own.
KEYS_MAX = 1 << 20
BYTES_MAX = 1 << 29
"""Of values, and of keys with a byte for each character."""
LEASES_MAX = 1 << 16
TTL_MAX_S = 86_400.0
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1

R_co = TypeVar("R_co", covariant=True)


class Entry(NamedTuple):
    """A key, its value, and the revision of the store at which the value was written."""

    key: str
    value: bytes
    revision: int


class Change(NamedTuple):
    """What a watch delivers: a key's new value, or None when the key is gone."""

    key: str
    value: bytes | None
    revision: int


class Swap(NamedTuple):
    """The outcome of `compare_set`: did this call write, and what is stored now.

    `value` is None and `revision` 0 when the key is absent afterwards.
    """

    ok: bool
    value: bytes | None
    revision: int


class Lease(NamedTuple):
    """A lease and the time to live that the server granted (it may exceed what was asked)."""

    id: LeaseId
    ttl: float


class Op(Generic[R_co]):
    """An operation whose result is an `R_co`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Get(Op[Entry | None]):
    """Read a key; never waits."""

    key: str


@dataclass(frozen=True, slots=True)
class Wait(Op[tuple[Entry, ...]]):
    """Read all of these keys at one moment at which every one of them exists."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Set(Op[int]):
    """Write a key and return the revision. Replaces the key's lease, by None if None."""

    key: str
    value: bytes
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Add(Op[int]):
    """Add to a decimal counter, absent meaning 0, and return the sum. Keeps the key's lease."""

    key: str
    amount: int


@dataclass(frozen=True, slots=True)
class CompareSet(Op[Swap]):
    """Write `desired` if the value is `expected`. None stands for absence, on both sides."""

    key: str
    expected: bytes | None
    desired: bytes | None
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete(Op[bool]):
    """Remove a key and say whether it was there."""

    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix(Op[int]):
    """Remove all keys that begin with a prefix, at one moment; return the revision."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Append(Op[int]):
    """Append to a value, absent meaning empty, and return its length. Keeps the key's lease."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class MultiGet(Op[tuple[Entry | None, ...]]):
    """Read several keys at one moment."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MultiSet(Op[int]):
    """Write several keys at one moment, at one revision, which is returned."""

    items: tuple[tuple[str, bytes], ...]
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Count(Op[int]):
    """Count the keys that begin with a prefix."""

    prefix: str


@dataclass(frozen=True, slots=True)
class ListPrefix(Op[tuple[Entry, ...]]):
    """Read all keys that begin with a prefix, at one moment, in order of the keys."""

    prefix: str


@dataclass(frozen=True, slots=True)
class LeaseGrant(Op[Lease]):
    """Take a lease that lives for `ttl` seconds of the server's clock unless kept alive.

    With `linger`, a server that sees its clients' connections ends the lease that many seconds
    after its holder's connection was closed and not made again.
    """

    ttl: float
    linger: float | None = None


@dataclass(frozen=True, slots=True)
class LeaseKeep(Op[float]):
    """Start the lease's time to live afresh and return it; LeaseLost if it is gone."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class LeaseRevoke(Op[bool]):
    """End a lease and delete its keys now; say whether it was alive."""

    lease: LeaseId


KeyWrite: TypeAlias = Set | Add | CompareSet | Delete | DeletePrefix | Append | MultiSet


@dataclass(frozen=True, slots=True)
class Guarded(Op[R_co]):
    """Perform a write only if `key` holds `expected` at that moment; Fenced if it does not."""

    key: str
    expected: bytes
    op: KeyWrite


AnyOp: TypeAlias = (
    Get
    | Wait
    | Set
    | Add
    | CompareSet
    | Delete
    | DeletePrefix
    | Append
    | MultiGet
    | MultiSet
    | Count
    | ListPrefix
    | LeaseGrant
    | LeaseKeep
    | LeaseRevoke
    | Guarded[object]
)

KEY_WRITES = (Set, Add, CompareSet, Delete, DeletePrefix, Append, MultiSet)
"""The operations that change keys; these can be guarded."""

WRITES = (*KEY_WRITES, LeaseGrant, LeaseKeep, LeaseRevoke, Guarded)
"""The operations that change something; for these, "did it happen?" is a question."""


def _bytes_of(text: str, what: str) -> int:
    if not isinstance(text, str):
        raise UsageError(f"{what} {text!r:.80}: must be a str, not {type(text).__name__}")
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} {text[:80]!r}: must be encodable as UTF-8") from None


def check_key(key: str, what: str = "key") -> str:
    """Return the key if it is one: 1 to 8192 bytes of UTF-8."""
    size = _bytes_of(key, what)
    if size == 0:
        raise UsageError(f"{what} '': must not be empty")
    if size > KEY_BYTES_MAX:
        raise UsageError(f"{what} {key[:40]!r}…: {size} bytes, at most {KEY_BYTES_MAX} are allowed")
    return key


def check_prefix(prefix: str) -> str:
    """Return the prefix if it is one: 0 to 8192 bytes of UTF-8; empty means every key."""
    return prefix if prefix == "" else check_key(prefix, "prefix")


def check_keys(keys: object) -> tuple[str, ...]:
    """Return the keys as a tuple; a single str is refused, since it would be taken as letters."""
    if isinstance(keys, (str, bytes)):
        raise UsageError(
            f"keys {keys!r:.80}: must be a list of keys, not one {type(keys).__name__}"
        )
    try:
        found: tuple[str, ...] = tuple(keys)  # type: ignore[arg-type]  # any iterable, by trying
    except TypeError:
        raise UsageError(f"keys {keys!r:.80}: must be a list of keys") from None
    if len(found) > KEYS_PER_CALL_MAX:
        raise UsageError(f"keys: {len(found)} given, at most {KEYS_PER_CALL_MAX} in one call")
    for key in found:
        check_key(key)
    return found


def check_value(value: bytes, what: str = "value") -> bytes:
    """Return the value as bytes if it is a bytes-like object of at most 8 MiB."""
    if not isinstance(value, bytes):
        if not isinstance(value, (bytearray, memoryview)):
            kind = type(value).__name__
            hint = "; encode it first" if isinstance(value, str) else ""
            raise UsageError(f"{what} {value!r:.80}: must be bytes, not {kind}{hint}")
        value = bytes(value)
    if len(value) > VALUE_BYTES_MAX:
        raise UsageError(f"{what}: {len(value)} bytes, at most {VALUE_BYTES_MAX} are allowed")
    return value


def check_ttl(ttl: float, what: str = "ttl") -> float:
    """Return the time to live if it is one: more than 0 seconds, at most a day."""
    number = isinstance(ttl, (int, float)) and not isinstance(ttl, bool)
    if not number or not 0 < ttl <= TTL_MAX_S:
        raise UsageError(
            f"{what} {ttl!r:.80}: more than 0 and at most {TTL_MAX_S:g} seconds are allowed"
        )
    return float(ttl)


def check_linger(linger: float | None) -> float | None:
    """Return the time that a lease outlives its holder's connection: 0 s to a day, or None."""
    if linger is None:
        return None
    number = isinstance(linger, (int, float)) and not isinstance(linger, bool)
    if not number or not 0 <= linger <= TTL_MAX_S:
        raise UsageError(
            f"linger {linger!r:.80}: from 0 to {TTL_MAX_S:g} seconds are allowed, or None"
        )
    return float(linger)
