"""The contract of every backend: unusual keys and values, and what is refused in one clear line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import LeaseLost, TimeoutExpired, UsageError
from holdfast.store.ops import (
    INT_MAX,
    KEY_BYTES_MAX,
    KEYS_PER_CALL_MAX,
    TTL_MAX_S,
    VALUE_BYTES_MAX,
    Entry,
    Lease,
)
from holdfast.store.store import Store, Watch
from tests.contract.conftest import Space

UNUSUAL_KEYS = [
    "é",
    "日本/語",
    "🗝",
    "/",
    "/leading",
    "trailing/",
    "a//b",
    "with space",
    " ",
    "_underscore",
    "__init__",
    ".",
    "..",
    "../up",
    "%",
    "%2F",
    "a%00b",
    "?query=1&x#fragment",
    'quote"\\back',
    "line\nbreak\ttab",
    "~",
    "*",
    "key=value",
]


@pytest.mark.parametrize("key", UNUSUAL_KEYS)
def test_unusual_keys_are_keys_like_all_others(store: Store, other: Store, key: str) -> None:
    with other.watch(key) as watch:
        revision = store.set(key, b"v")
        assert watch.next(timeout=30) == (key, b"v", revision)
    assert other.get(key) == b"v"
    assert other.wait([key], timeout=30) == [b"v"]
    assert other.list_prefix(key) == [Entry(key, b"v", revision)]
    assert other.count() == 1
    assert other.compare_set(key, b"v", b"1").ok
    assert other.add(key) == 2
    assert other.append(key, b"!") == 2
    assert other.multi_get([key]) == [b"2!"]
    assert other.delete(key)
    assert store.count() == 0


def test_unusual_keys_do_not_collide(store: Store) -> None:
    store.multi_set({key: key.encode() for key in UNUSUAL_KEYS})
    listed = store.list_prefix()
    assert [entry.key for entry in listed] == sorted(UNUSUAL_KEYS)
    assert all(entry.value == entry.key.encode() for entry in listed)


def test_the_longest_key_fits_and_one_byte_more_is_refused(space: Space, store: Store) -> None:
    longest = "é" + "k" * (space.backend.key_bytes_max - 2)
    store.set(longest, b"v")
    assert store.get(longest) == b"v"
    assert store.wait([longest], timeout=30) == [b"v"]
    with pytest.raises(UsageError, match=f"{KEY_BYTES_MAX + 1} bytes, at most {KEY_BYTES_MAX}"):
        store.set(longest + "k", b"v")
    assert store.count() == 1


@pytest.mark.parametrize(
    "value",
    [b"", b"\x00", bytes(range(256)), "text é".encode(), b"%", b"x" * (1024 * 1024)],
    ids=["empty", "zero", "binary", "text", "percent", "1 MiB"],
)
def test_values_come_back_as_they_were(store: Store, other: Store, value: bytes) -> None:
    store.set("k", value)
    assert other.get("k") == value
    assert other.multi_get(["k"]) == [value]
    assert other.wait(["k"], timeout=30) == [value]
    with other.watch("k") as watch:
        assert watch.next(timeout=30).value == value
    assert other.compare_set("k", value, value + b"!").ok
    assert store.get("k") == value + b"!"


def test_bytes_like_values_are_taken(store: Store) -> None:
    values: list[Any] = [bytearray(b"1"), memoryview(b"2")]
    store.set("a", values[0])
    store.set("b", values[1])
    assert store.multi_get(["a", "b"]) == [b"1", b"2"]


TOO_LARGE = bytes(VALUE_BYTES_MAX + 1)
BAD_CALLS: list[tuple[str, Callable[[Any], object], str]] = [
    ("empty key", lambda s: s.get(""), "key '': must not be empty"),
    ("bytes as key", lambda s: s.get(b"k"), "key b'k': must be a str, not bytes"),
    ("None as key", lambda s: s.set(None, b""), "key None: must be a str, not NoneType"),
    ("surrogate", lambda s: s.get("\ud800"), "must be encodable as UTF-8"),
    ("str value", lambda s: s.set("k", "v"), "value 'v': must be bytes, not str; encode it first"),
    ("int value", lambda s: s.append("k", 5), "value 5: must be bytes, not int"),
    ("large value", lambda s: s.set("k", TOO_LARGE), f"{VALUE_BYTES_MAX + 1} bytes, at most"),
    ("large append", lambda s: s.append("k", TOO_LARGE), "at most"),
    ("large desired", lambda s: s.compare_set("k", None, TOO_LARGE), "desired: .* at most"),
    ("str expected", lambda s: s.compare_set("k", "v", None), "expected 'v': must be bytes"),
    ("float amount", lambda s: s.add("k", 1.0), r"amount 1\.0: must be an int"),
    ("bool amount", lambda s: s.add("k", True), "amount True: must be an int"),
    ("large amount", lambda s: s.add("k", INT_MAX + 1), "must fit in 64 bits"),
    ("one str for keys", lambda s: s.wait("abc"), "keys 'abc': must be a list of keys"),
    ("number for keys", lambda s: s.multi_get(7), "keys 7: must be a list of keys"),
    ("bad key among keys", lambda s: s.multi_get(["a", ""]), "must not be empty"),
    ("too many keys", lambda s: s.wait(["k"] * (KEYS_PER_CALL_MAX + 1)), "at most 65536"),
    ("items as list", lambda s: s.multi_set([("k", b"")]), "must be a mapping"),
    ("items' value", lambda s: s.multi_set({"a": b"", "k": "v"}), "value of key 'k' 'v': must be"),
    ("prefix", lambda s: s.count(5), "prefix 5: must be a str"),
    ("zero ttl", lambda s: s.grant_lease(0), "ttl 0: more than 0 and at most 86400 seconds"),
    ("negative ttl", lambda s: s.grant_lease(-1.5), r"ttl -1\.5"),
    ("endless ttl", lambda s: s.grant_lease(TTL_MAX_S + 1), "ttl 86401"),
    ("nan ttl", lambda s: s.grant_lease(float("nan")), "ttl nan"),
    ("bool ttl", lambda s: s.grant_lease(True), "ttl True"),
    ("text ttl", lambda s: s.grant_lease("5"), "ttl '5'"),
    ("number for lease", lambda s: s.set("k", b"", lease=1), "lease 1: must be what grant_lease"),
    ("kept number", lambda s: s.keep_lease(1), "lease 1: must be what grant_lease"),
    ("revoked number", lambda s: s.revoke_lease(1), "lease 1: must be what grant_lease"),
]


@pytest.mark.parametrize(("call", "message"), [pytest.param(*c[1:], id=c[0]) for c in BAD_CALLS])
def test_bad_input_is_refused_in_one_line(
    store: Store, call: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        call(store)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    assert store.count() == 0


LEASE = Lease(id=1, ttl=1.0)  # type: ignore[arg-type]  # a lease that no store granted
EVERY_VERB: list[tuple[str, Callable[..., object]]] = [
    ("get", lambda s, **t: s.get("k", **t)),
    ("get_entry", lambda s, **t: s.get_entry("k", **t)),
    ("multi_get", lambda s, **t: s.multi_get(["k"], **t)),
    ("wait", lambda s, **t: s.wait(["k"], **t)),
    ("count", lambda s, **t: s.count(**t)),
    ("list_prefix", lambda s, **t: s.list_prefix(**t)),
    ("watch", lambda s, **t: s.watch("k", **t)),
    ("set", lambda s, **t: s.set("k", b"", **t)),
    ("multi_set", lambda s, **t: s.multi_set({"k": b""}, **t)),
    ("add", lambda s, **t: s.add("k", **t)),
    ("compare_set", lambda s, **t: s.compare_set("k", None, b"", **t)),
    ("append", lambda s, **t: s.append("k", b"", **t)),
    ("delete", lambda s, **t: s.delete("k", **t)),
    ("grant_lease", lambda s, **t: s.grant_lease(60, **t)),
    ("keep_lease", lambda s, **t: s.keep_lease(LEASE, **t)),
    ("revoke_lease", lambda s, **t: s.revoke_lease(LEASE, **t)),
]
every_verb = pytest.mark.parametrize("call", [pytest.param(c, id=name) for name, c in EVERY_VERB])


BAD_TIMEOUTS: list[Any] = [-1, -0.001, float("nan"), float("-inf"), True, "1", b"", [1]]


@every_verb
def test_a_bad_timeout_is_refused_and_nothing_happens(
    store: Store, call: Callable[..., object]
) -> None:
    for timeout in BAD_TIMEOUTS:
        with pytest.raises(UsageError, match="timeout"):
            call(store, timeout=timeout)
    assert store.count() == 0


def test_a_watch_refuses_a_bad_timeout(store: Store) -> None:
    with store.watch("k") as watch, pytest.raises(UsageError, match="timeout -1"):
        watch.next(timeout=-1)


@pytest.mark.parametrize("timeout", [None, 30, 30.0, 1e300, float("inf")])
def test_long_and_endless_timeouts(store: Store, timeout: float | None) -> None:
    store.set("k", b"v", timeout=timeout)
    assert store.get("k", timeout=timeout) == b"v"
    assert store.wait(["k"], timeout=timeout) == [b"v"]
    with store.watch("k", timeout=timeout) as watch:
        assert watch.next(timeout=timeout).value == b"v"


@every_verb
def test_with_no_time_a_call_succeeds_or_times_out(
    store: Store, call: Callable[..., object]
) -> None:
    store.set("warm", b"up")
    try:
        result = call(store, timeout=0)
    except (TimeoutExpired, LeaseLost):
        return  # the lease was never granted
    if isinstance(result, Watch):
        result.close()


@every_verb
def test_a_closed_store_refuses_every_call(space: Space, call: Callable[..., object]) -> None:
    store = space.open()
    store.get("k")
    store.close()
    store.close()
    with pytest.raises(UsageError, match="closed"):
        call(store)


def test_a_store_closed_before_its_first_use(space: Space) -> None:
    store = space.open()
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.get("k")


def test_a_store_says_where_it_is(store: Store) -> None:
    assert store.endpoint in repr(store)
    assert "://" in store.endpoint
