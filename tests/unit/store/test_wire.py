"""The codec of operations and results: exact both ways, and deaf to everything else."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import PeerViolation
from holdfast.ids import LeaseId
from holdfast.store import ops
from holdfast.store.ops import KEY_BYTES_MAX, KEYS_PER_CALL_MAX, VALUE_BYTES_MAX, AnyOp
from holdfast.store.wire import (
    KNOWN_BYTES_MAX,
    decode_op,
    decode_result,
    encode_op,
    encode_result,
)
from tests.unit.store.wire_examples import (
    ANY_OP,
    ANY_OP_AND_RESULT,
    OPS_AND_RESULTS,
    OpAndResult,
    mutated,
)

ALL_KINDS = [get_origin(kind) or kind for kind in get_args(AnyOp)]


def test_every_operation_has_an_example() -> None:
    assert set(OPS_AND_RESULTS) == set(ALL_KINDS)


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(data=st.data())
def test_operations_and_results_come_back_as_they_were(
    kind: type[AnyOp], data: st.DataObject
) -> None:
    op, result = data.draw(OPS_AND_RESULTS[kind])
    assert decode_op(encode_op(op)) == op
    assert decode_op(b"head" + encode_op(op), 4) == op
    back = decode_result(op, encode_result(op, result))
    assert back == result
    assert type(back) is type(result)
    assert decode_result(op, b"head" + encode_result(op, result), 4) == result


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(data=st.data())
def test_every_truncation_and_every_extra_byte_is_refused(
    kind: type[AnyOp], data: st.DataObject
) -> None:
    op, result = data.draw(OPS_AND_RESULTS[kind])
    whole, answer = encode_op(op), encode_result(op, result)
    for size in range(len(whole)):
        with pytest.raises(PeerViolation):
            decode_op(whole[:size])
    for size in range(len(answer)):
        with pytest.raises(PeerViolation):
            decode_result(op, answer[:size])
    with pytest.raises(PeerViolation, match="1 bytes too many"):
        decode_op(whole + b"\0")
    with pytest.raises(PeerViolation, match="1 bytes too many"):
        decode_result(op, answer + b"\0")


@given(st.data(), ANY_OP_AND_RESULT)
def test_mutated_bytes_are_refused_or_are_another_valid_thing(
    data: st.DataObject, pair: OpAndResult
) -> None:
    op, result = pair
    changed = data.draw(mutated(encode_op(op)))
    try:
        found = decode_op(changed)
    except PeerViolation:
        pass
    else:
        assert encode_op(found) == changed
    changed = data.draw(mutated(encode_result(op, result)))
    try:
        decode_result(op, changed)
    except PeerViolation:
        pass


@given(st.binary(max_size=40), ANY_OP)
def test_random_bytes_raise_nothing_else(data: bytes, op: AnyOp) -> None:
    try:
        decode_op(data)
    except PeerViolation:
        pass
    try:
        decode_result(op, data)
    except PeerViolation:
        pass


def _refused(data: bytes, match: str) -> None:
    with pytest.raises(PeerViolation, match=match):
        decode_op(data)


def test_unknown_codes_are_refused() -> None:
    _refused(b"\x00", "operation 0 is unknown")
    _refused(b"\x11", "operation 17 is unknown")
    _refused(b"\xff", "operation 255 is unknown")


@pytest.mark.parametrize("more", [0, 1])
def test_an_operation_reads_alike_the_second_time_whether_it_is_remembered_or_not(
    more: int,
) -> None:
    op = ops.Set("k", b"v" * (KNOWN_BYTES_MAX - 16 + more), None)
    data = encode_op(op)
    assert len(data) == KNOWN_BYTES_MAX + more
    first, second = decode_op(data), decode_op(data)
    assert first == second == op
    assert (first is second) == (more == 0)
    for _ in range(2):
        with pytest.raises(PeerViolation):
            decode_op(data[:-1])


def test_text_must_be_utf8() -> None:
    _refused(b"\x01\x00\x01\xff", "not UTF-8")


def test_a_flag_is_0_or_1() -> None:
    with pytest.raises(PeerViolation, match="a flag is 2"):
        decode_result(ops.Delete("k"), b"\x02")


def test_what_goes_on_after_its_end_is_refused() -> None:
    with pytest.raises(PeerViolation, match="1 bytes too many"):
        decode_result(ops.Delete("k"), b"\x01\x00")


OUT_OF_BOUNDS: list[AnyOp] = [
    *(kind("") for kind in (ops.Get, ops.Delete, ops.DeletePrefix)),
    ops.Add("", 1),
    ops.Get("k" * (KEY_BYTES_MAX + 1)),
    ops.Get("é" * (KEY_BYTES_MAX // 2) + "k"),
    ops.Set("", b""),
    ops.Set("k", bytes(VALUE_BYTES_MAX + 1)),
    ops.Append("k", bytes(VALUE_BYTES_MAX + 1)),
    ops.CompareSet("k", bytes(VALUE_BYTES_MAX + 1), None),
    ops.CompareSet("k", None, bytes(VALUE_BYTES_MAX + 1)),
    ops.Wait(("k", "")),
    ops.MultiGet(("",)),
    ops.MultiSet((("", b""),)),
    ops.MultiSet((("k", bytes(VALUE_BYTES_MAX + 1)),)),
    ops.Count("k" * (KEY_BYTES_MAX + 1)),
    ops.ListPrefix("k" * (KEY_BYTES_MAX + 1)),
    ops.LeaseGrant(0.0),
    ops.LeaseGrant(-1.0),
    ops.LeaseGrant(float("nan")),
    ops.LeaseGrant(float("inf")),
    ops.LeaseGrant(ops.TTL_MAX_S * 1.001),
    ops.LeaseGrant(1.0, -0.5),
    ops.LeaseGrant(1.0, float("nan")),
    ops.LeaseGrant(1.0, ops.TTL_MAX_S * 1.001),
    ops.Guarded("", b"", ops.Delete("k")),
    ops.Guarded("g", bytes(VALUE_BYTES_MAX + 1), ops.Delete("k")),
    ops.Guarded("g", b"", ops.Delete("")),
]


@pytest.mark.parametrize("op", OUT_OF_BOUNDS, ids=lambda op: repr(op)[:40])
def test_operations_out_of_bounds_are_refused(op: AnyOp) -> None:
    _refused(encode_op(op), "out of bounds")


AT_THE_LIMIT: list[AnyOp] = [
    ops.Get("k" * KEY_BYTES_MAX),
    ops.Set("k", bytes(VALUE_BYTES_MAX), LeaseId(2**64 - 1)),
    ops.Wait(("k",) * KEYS_PER_CALL_MAX),
    ops.MultiSet((("k", b""),) * KEYS_PER_CALL_MAX),
    ops.LeaseGrant(ops.TTL_MAX_S),
    ops.LeaseGrant(1.0, 0.0),
    ops.LeaseGrant(1.0, ops.TTL_MAX_S),
    ops.Guarded("k" * KEY_BYTES_MAX, bytes(VALUE_BYTES_MAX), ops.Set("k", b"")),
    ops.Add("k", ops.INT_MIN),
    ops.Add("k", ops.INT_MAX),
]


@pytest.mark.parametrize("op", AT_THE_LIMIT, ids=lambda op: repr(op)[:40])
def test_operations_at_the_limit_are_taken(op: AnyOp) -> None:
    assert decode_op(encode_op(op)) == op


def test_one_key_more_than_the_limit_is_refused() -> None:
    keys = ("k",) * (KEYS_PER_CALL_MAX + 1)
    _refused(encode_op(ops.Wait(keys)), "more than it may hold")
    _refused(encode_op(ops.MultiGet(keys)), "more than it may hold")
    _refused(encode_op(ops.MultiSet(tuple((key, b"") for key in keys))), "more than it may hold")


UNGUARDABLE: list[Any] = [
    ops.Get("k"),
    ops.Wait(("k",)),
    ops.LeaseGrant(1.0),
    ops.LeaseKeep(LeaseId(1)),
    ops.Guarded("h", b"", ops.Delete("k")),
]


@pytest.mark.parametrize("op", UNGUARDABLE, ids=lambda op: type(op).__name__)
def test_only_writes_of_keys_can_be_guarded(op: Any) -> None:
    _refused(encode_op(ops.Guarded("g", b"", op)), "cannot be guarded")


def test_a_guard_around_nothing_is_refused() -> None:
    _refused(encode_op(ops.Guarded("g", b"", ops.Delete("k")))[:8], "none cannot be guarded")


def test_a_deep_nest_of_guards_is_refused_at_its_first_level() -> None:
    one = encode_op(ops.Guarded("g", b"", ops.Delete("k")))[:8]
    _refused(one * 100_000 + encode_op(ops.Delete("k")), "cannot be guarded")


LYING_COUNT = struct.pack(">I", 2**32 - 1)


@pytest.mark.parametrize(
    "decode",
    [
        lambda: decode_op(b"\x02" + LYING_COUNT + bytes(1000)),
        lambda: decode_op(b"\x08" + LYING_COUNT + bytes(1000)),
        lambda: decode_op(b"\x09" + LYING_COUNT + bytes(1000)),
        lambda: decode_op(b"\x03\x00\x01k" + LYING_COUNT + bytes(1000)),
        lambda: decode_result(ops.Wait(()), LYING_COUNT + bytes(1000)),
        lambda: decode_result(ops.MultiGet(()), LYING_COUNT + bytes(1000)),
        lambda: decode_result(ops.ListPrefix(""), LYING_COUNT + bytes(1000)),
    ],
    ids=["wait", "multi_get", "multi_set", "value", "entries", "maybe entries", "listing"],
)
def test_a_lying_count_costs_no_memory(decode: Any) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PeerViolation):
            decode()
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
