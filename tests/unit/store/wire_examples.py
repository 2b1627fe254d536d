"""Hypothesis strategies for every operation, with a result that it may return."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

from hypothesis import strategies as st

from holdfast.ids import LeaseId
from holdfast.store import ops
from holdfast.store.ops import AnyOp, Change, Entry, Lease, Swap

OpAndResult: TypeAlias = tuple[AnyOp, Any]

U64 = st.integers(0, 2**64 - 1)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
PREFIXES = st.just("") | KEYS
VALUES = st.binary(max_size=12)
LEASES = st.integers(1, 2**64 - 1).map(LeaseId)
ENTRIES = st.builds(Entry, KEYS, VALUES, U64)
CHANGES = st.builds(Change, KEYS, st.none() | VALUES, U64)
MANY_KEYS = st.lists(KEYS, max_size=3).map(tuple)
MANY_ENTRIES = st.lists(ENTRIES, max_size=3).map(tuple)
TTLS = st.floats(0, ops.TTL_MAX_S, exclude_min=True)
LINGERS = st.none() | st.floats(0, ops.TTL_MAX_S)
I64 = st.integers(ops.INT_MIN, ops.INT_MAX)

OPS_AND_RESULTS: dict[type[AnyOp], st.SearchStrategy[tuple[Any, Any]]] = {
    ops.Get: st.tuples(st.builds(ops.Get, KEYS), st.none() | ENTRIES),
    ops.Wait: st.tuples(st.builds(ops.Wait, MANY_KEYS), MANY_ENTRIES),
    ops.Set: st.tuples(st.builds(ops.Set, KEYS, VALUES, st.none() | LEASES), U64),
    ops.Add: st.tuples(st.builds(ops.Add, KEYS, I64), I64),
    ops.CompareSet: st.tuples(
        st.builds(ops.CompareSet, KEYS, st.none() | VALUES, st.none() | VALUES, st.none() | LEASES),
        st.builds(Swap, st.booleans(), st.none() | VALUES, U64),
    ),
    ops.Delete: st.tuples(st.builds(ops.Delete, KEYS), st.booleans()),
    ops.DeletePrefix: st.tuples(st.builds(ops.DeletePrefix, KEYS), U64),
    ops.Append: st.tuples(st.builds(ops.Append, KEYS, VALUES), U64),
    ops.MultiGet: st.tuples(
        st.builds(ops.MultiGet, MANY_KEYS), st.lists(st.none() | ENTRIES, max_size=3).map(tuple)
    ),
    ops.MultiSet: st.tuples(
        st.builds(
            ops.MultiSet,
            st.lists(st.tuples(KEYS, VALUES), max_size=3).map(tuple),
            st.none() | LEASES,
        ),
        U64,
    ),
    ops.Count: st.tuples(st.builds(ops.Count, PREFIXES), U64),
    ops.ListPrefix: st.tuples(st.builds(ops.ListPrefix, PREFIXES), MANY_ENTRIES),
    ops.LeaseGrant: st.tuples(
        st.builds(ops.LeaseGrant, TTLS, LINGERS), st.builds(Lease, LEASES, TTLS)
    ),
    ops.LeaseKeep: st.tuples(st.builds(ops.LeaseKeep, LEASES), TTLS),
    ops.LeaseRevoke: st.tuples(st.builds(ops.LeaseRevoke, LEASES), st.booleans()),
}
GUARDED: st.SearchStrategy[tuple[Any, Any]] = st.tuples(
    KEYS, VALUES, st.one_of([OPS_AND_RESULTS[kind] for kind in ops.KEY_WRITES])
).map(lambda drawn: (ops.Guarded(drawn[0], drawn[1], drawn[2][0]), drawn[2][1]))
OPS_AND_RESULTS[ops.Guarded] = GUARDED

ANY_OP_AND_RESULT = cast(
    "st.SearchStrategy[OpAndResult]", st.one_of(list(OPS_AND_RESULTS.values()))
)
ANY_OP = ANY_OP_AND_RESULT.map(lambda pair: pair[0])


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Change some bytes, cut some out or put some in."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(found)))
        match draw(st.integers(0, 2)):
            case 0 if at < len(found):
                found[at] = draw(st.integers(0, 255))
            case 1:
                del found[at : at + draw(st.integers(1, 8))]
            case _:
                found[at:at] = draw(st.binary(min_size=1, max_size=8))
    return bytes(found)
