"""Operations as data, and the checks of what goes into them."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import pytest

from holdfast.errors import UsageError
from holdfast.store import ops
from holdfast.store.ops import (
    AnyOp,
    check_key,
    check_keys,
    check_linger,
    check_prefix,
    check_ttl,
    check_value,
)


def test_every_operation_is_either_a_write_or_a_read() -> None:
    reads = {ops.Get, ops.Wait, ops.MultiGet, ops.Count, ops.ListPrefix}
    kinds = {get_origin(kind) or kind for kind in get_args(AnyOp)}
    assert kinds == reads | set(ops.WRITES)


def test_what_can_be_guarded_is_what_changes_keys() -> None:
    assert set(ops.KEY_WRITES) == set(get_args(ops.KeyWrite))
    leases = {ops.LeaseGrant, ops.LeaseKeep, ops.LeaseRevoke}
    assert set(ops.WRITES) == {*ops.KEY_WRITES, *leases, ops.Guarded}


@pytest.mark.parametrize("linger", [None, 0, 0.2, 86_400])
def test_lingers_that_are_allowed(linger: float | None) -> None:
    assert check_linger(linger) == linger


@pytest.mark.parametrize("linger", [-0.1, 86_401, float("nan"), True, "2", "x" * 500])
def test_lingers_that_are_not(linger: Any) -> None:
    with pytest.raises(UsageError, match="linger .*from 0 to 86400 seconds") as caught:
        check_linger(linger)
    assert len(str(caught.value)) < 160


def test_operations_cannot_be_changed() -> None:
    op = ops.Set("k", b"v")
    with pytest.raises(AttributeError):
        op.key = "other"  # type: ignore[misc]  # that is the point
    assert op == ops.Set("k", b"v", None)
    assert len({op, ops.Set("k", b"v")}) == 1


@pytest.mark.parametrize("key", ["k", "é", "a" * 8192, "é" * 4096])
def test_keys_that_are_allowed(key: str) -> None:
    assert check_key(key) == key
    assert check_prefix(key) == key


BAD_KEYS: list[tuple[Any, str]] = [
    ("", "key '': must not be empty"),
    ("a" * 8193, "key 'a{40}'…: 8193 bytes, at most 8192"),
    ("é" * 4097, "8194 bytes, at most 8192"),
    ("\udfff", "must be encodable as UTF-8"),
    (None, "key None: must be a str, not NoneType"),
    (["x" * 500], "must be a str, not list"),
]


@pytest.mark.parametrize(("key", "message"), BAD_KEYS)
def test_keys_that_are_not(key: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        check_key(key)
    assert len(str(caught.value)) < 150


def test_an_empty_prefix_means_every_key() -> None:
    assert check_prefix("") == ""
    with pytest.raises(UsageError, match="prefix b'': must be a str"):
        check_prefix(b"")  # type: ignore[arg-type]  # that is the point


def test_keys_come_as_any_iterable_but_not_as_one_text() -> None:
    assert check_keys(iter(["a", "b"])) == ("a", "b")
    assert check_keys({"a": 1}) == ("a",)
    for wrong in ("abc", b"abc", 5, None):
        with pytest.raises(UsageError, match="must be a list of keys"):
            check_keys(wrong)
    with pytest.raises(UsageError, match="keys: 65537 given, at most 65536 in one call"):
        check_keys(["k"] * 65537)
    with pytest.raises(UsageError, match="key 5: must be a str"):
        check_keys(["k", 5])


def test_values_are_bytes() -> None:
    assert check_value(b"v") == b"v"
    mutable: Any = bytearray(b"v")
    kept = check_value(mutable)
    mutable[0] = 0
    assert kept == b"v"
    view: Any = memoryview(b"abcd")[::2]
    assert check_value(view) == b"ac"
    assert len(check_value(bytes(8 * 1024 * 1024))) == 8 * 1024 * 1024
    with pytest.raises(UsageError, match="value: 8388609 bytes, at most 8388608 are allowed"):
        check_value(bytes(8 * 1024 * 1024 + 1))
    for wrong, message in (("é", "not str; encode it first"), (7, "not int$"), (None, "NoneType")):
        with pytest.raises(UsageError, match=message):
            check_value(wrong)  # type: ignore[arg-type]  # that is the point


def test_times_to_live() -> None:
    assert check_ttl(1) == 1.0
    assert isinstance(check_ttl(1), float)
    assert check_ttl(86_400) == 86_400.0
    wrong: list[Any] = [0, -1, 86_400.1, float("nan"), float("inf"), True, "1", None]
    for ttl in wrong:
        with pytest.raises(UsageError, match="ttl .* more than 0 and at most 86400 seconds"):
            check_ttl(ttl)
