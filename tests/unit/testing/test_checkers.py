"""The checkers accept what a store may do, and reject what it must not."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.ids import LeaseId
from holdfast.store.keyspace import Keyspace
from holdfast.store.ops import (
    Add,
    AnyOp,
    Append,
    Change,
    CompareSet,
    Count,
    Delete,
    Entry,
    Get,
    Guarded,
    LeaseKeep,
    ListPrefix,
    MultiGet,
    MultiSet,
    Set,
    Swap,
    Wait,
)
from holdfast.testing.checkers import (
    UNKNOWN,
    Call,
    Expire,
    check_key,
    check_lease,
    check_revisions,
    check_watch,
    split_by_key,
)

K = "k"
LEASE = LeaseId(7)


def call(client: str, op: AnyOp | Expire, result: object, called: float, returned: float) -> Call:
    return Call(client, op, result, called, returned)


def lost(client: str, op: AnyOp | Expire, called: float) -> Call:
    return Call(client, op, UNKNOWN, called)


def entry(value: bytes, revision: int) -> Entry:
    return Entry(K, value, revision)


GOOD: dict[str, list[Call]] = {
    "nothing happened": [],
    "a missing key is read": [call("a", Get(K), None, 1, 2)],
    "a read after a write": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("b", Get(K), entry(b"x", 1), 3, 4),
    ],
    "a read beside a write may miss it": [
        call("a", Set(K, b"x"), 1, 1, 4),
        call("b", Get(K), None, 2, 3),
    ],
    "a read beside a write may see it": [
        call("a", Set(K, b"x"), 1, 1, 4),
        call("b", Get(K), entry(b"x", 1), 2, 3),
    ],
    "calls that touch at one moment overlap": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("b", Get(K), None, 2, 3),
    ],
    "an unknown write that never happened": [
        lost("a", Set(K, b"x"), 1),
        call("b", Get(K), None, 5, 6),
    ],
    "an unknown write that happened late": [
        lost("a", Set(K, b"x"), 1),
        call("b", Get(K), None, 5, 6),
        call("b", Get(K), entry(b"x", 9), 7, 8),
    ],
    "an unknown add that happened between two others": [
        call("a", Add(K, 1), 1, 1, 2),
        lost("b", Add(K, 10), 1),
        call("a", Add(K, 1), 12, 3, 4),
    ],
    "an unknown swap that won": [
        call("a", Set(K, b"x"), 1, 1, 2),
        lost("b", CompareSet(K, b"x", b"y"), 1),
        call("a", CompareSet(K, b"x", b"z"), Swap(False, b"y", 4), 3, 4),
    ],
    "an unknown delete, and a counter that begins again": [
        call("a", Add(K, 5), 5, 1, 2),
        lost("b", Delete(K), 1),
        call("a", Add(K, 5), 5, 3, 4),
    ],
    "an unknown read says nothing": [lost("a", Append(K, b"x"), 1)],
    "swaps create, change and remove": [
        call("a", CompareSet(K, None, b"x"), Swap(True, b"x", 1), 1, 2),
        call("a", CompareSet(K, None, b"y"), Swap(False, b"x", 1), 3, 4),
        call("a", CompareSet(K, b"x", None), Swap(True, None, 0), 5, 6),
        call("a", CompareSet(K, b"x", b"y"), Swap(False, None, 0), 7, 8),
        call("a", Set(K, b"z"), 3, 9, 10),
    ],
    "appends in an order that the lengths allow": [
        call("a", Append(K, b"xx"), 3, 1, 5),
        call("b", Append(K, b"y"), 1, 2, 4),
        call("c", Get(K), entry(b"yxx", 2), 6, 7),
    ],
    "gaps in the revisions, for other keys take some": [
        call("a", Set(K, b"x"), 3, 1, 2),
        call("a", Set(K, b"y"), 9, 3, 4),
    ],
    "a lease takes its key": [
        call("a", Set(K, b"x", LEASE), 1, 1, 2),
        lost("server", Expire(K, LEASE), 3),
        call("b", Get(K), entry(b"x", 1), 3, 4),
        call("b", Get(K), None, 5, 6),
        call("b", Add(K, 2), 2, 7, 8),
    ],
    "a lease spares a key that left it": [
        call("a", Set(K, b"x", LEASE), 1, 1, 2),
        call("a", Set(K, b"y"), 2, 3, 4),
        lost("server", Expire(K, LEASE), 5),
        call("b", Get(K), entry(b"y", 2), 6, 7),
    ],
    "adding keeps the lease": [
        call("a", Set(K, b"1", LEASE), 1, 1, 2),
        call("a", Add(K, 1), 2, 3, 4),
        lost("server", Expire(K, LEASE), 5),
        call("b", Get(K), None, 6, 7),
    ],
}

BAD: dict[str, list[Call]] = {
    "stale read": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("a", Set(K, b"y"), 2, 3, 4),
        call("b", Get(K), entry(b"x", 1), 5, 6),
    ],
    "stale read of equal bytes, told by the revision": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("a", Set(K, b"x"), 2, 3, 4),
        call("b", Get(K), entry(b"x", 1), 5, 6),
    ],
    "lost write": [call("a", Set(K, b"x"), 1, 1, 2), call("b", Get(K), None, 3, 4)],
    "lost update of a counter": [
        call("a", Add(K, 1), 1, 1, 2),
        call("b", Add(K, 1), 1, 3, 4),
    ],
    "double add, seen by a reader": [
        call("a", Add(K, 1), 1, 1, 2),
        call("b", Get(K), entry(b"2", 2), 3, 4),
    ],
    "double add, seen by the adder": [call("a", Add(K, 1), 2, 1, 2)],
    "an unknown add that happened twice": [
        lost("a", Add(K, 1), 1),
        call("b", Get(K), entry(b"2", 2), 3, 4),
    ],
    "wrong sum": [call("a", Add(K, 2), 2, 1, 2), call("a", Add(K, 3), 6, 3, 4)],
    "two adders given the same sum": [
        call("a", Add(K, 1), 1, 1, 4),
        call("b", Add(K, 1), 1, 2, 3),
    ],
    "dirty read of a failed swap": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("b", CompareSet(K, b"z", b"y"), Swap(False, b"x", 1), 3, 4),
        call("c", Get(K), entry(b"y", 2), 5, 6),
    ],
    "two winners of one swap": [
        call("a", CompareSet(K, None, b"a"), Swap(True, b"a", 1), 1, 4),
        call("b", CompareSet(K, None, b"b"), Swap(True, b"b", 2), 2, 3),
    ],
    "no winner of a swap": [
        call("a", CompareSet(K, None, b"a"), Swap(False, None, 0), 1, 2),
    ],
    "a loser told of a value that was never there": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("b", CompareSet(K, None, b"b"), Swap(False, b"q", 1), 3, 4),
    ],
    "a loser told of an old revision": [
        call("a", Set(K, b"x"), 5, 1, 2),
        call("b", CompareSet(K, None, b"b"), Swap(False, b"x", 4), 3, 4),
    ],
    "resurrected delete": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("a", Delete(K), True, 3, 4),
        call("b", Get(K), entry(b"x", 1), 5, 6),
    ],
    "two deletes of one value": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("a", Delete(K), True, 3, 6),
        call("b", Delete(K), True, 4, 5),
    ],
    "a delete that denies what was there": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("a", Delete(K), False, 3, 4),
    ],
    "reads of two clients that go back in time": [
        call("a", Set(K, b"x"), 1, 1, 10),
        call("b", Get(K), entry(b"x", 1), 2, 3),
        call("c", Get(K), None, 4, 5),
    ],
    "reads of one client that go back in time": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("a", Set(K, b"y"), 2, 3, 10),
        call("b", Get(K), entry(b"y", 2), 4, 5),
        call("b", Get(K), entry(b"x", 1), 6, 7),
    ],
    "two readers that disagree on the order of two writes": [
        call("a", Set(K, b"x"), 1, 1, 20),
        call("b", Set(K, b"y"), 2, 1, 20),
        call("c", Get(K), entry(b"x", 1), 2, 3),
        call("c", Get(K), entry(b"y", 2), 4, 5),
        call("d", Get(K), entry(b"x", 1), 6, 7),
    ],
    "a read from the future": [
        call("b", Get(K), entry(b"x", 1), 1, 2),
        call("a", Set(K, b"x"), 1, 3, 4),
    ],
    "a read of an unknown write before it was asked": [
        call("b", Get(K), entry(b"x", 1), 1, 2),
        lost("a", Set(K, b"x"), 3),
    ],
    "a read out of thin air": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("b", Get(K), entry(b"w", 1), 3, 4),
    ],
    "appends that ran over each other": [
        call("a", Append(K, b"x"), 1, 1, 2),
        call("b", Append(K, b"y"), 2, 3, 4),
        call("c", Get(K), entry(b"y", 2), 5, 6),
    ],
    "appends in the wrong order": [
        call("a", Append(K, b"x"), 1, 1, 2),
        call("b", Append(K, b"y"), 2, 3, 4),
        call("c", Get(K), entry(b"yx", 2), 5, 6),
    ],
    "an append that was applied twice": [
        call("a", Append(K, b"x"), 1, 1, 2),
        call("c", Get(K), entry(b"xx", 2), 3, 4),
    ],
    "revisions that go back": [
        call("a", Set(K, b"x"), 5, 1, 2),
        call("a", Set(K, b"y"), 4, 3, 4),
    ],
    "one revision for two writes": [
        call("a", Set(K, b"x"), 5, 1, 4),
        call("b", Set(K, b"y"), 5, 2, 3),
    ],
    "two revisions for one write": [
        call("a", Append(K, b"x"), 1, 1, 2),
        call("b", Get(K), entry(b"x", 1), 3, 4),
        call("b", Get(K), entry(b"x", 2), 5, 6),
    ],
    "too few revisions for the writes between": [
        call("a", Set(K, b"1"), 1, 1, 2),
        call("a", Add(K, 1), 2, 3, 4),
        call("a", Add(K, 1), 3, 5, 6),
        call("a", Get(K), entry(b"3", 2), 7, 8),
    ],
    "a key that vanished though nobody removed it": [
        call("a", Set(K, b"x", LEASE), 1, 1, 2),
        call("b", Get(K), None, 3, 4),
        lost("server", Expire(K, LEASE), 5),
    ],
    "a lease that took a key which had left it": [
        call("a", Set(K, b"x", LEASE), 1, 1, 2),
        call("a", Set(K, b"y"), 2, 3, 4),
        lost("server", Expire(K, LEASE), 5),
        call("b", Get(K), None, 6, 7),
    ],
    "a write under a lease that has ended": [
        call("a", Set(K, b"x", LEASE), 1, 1, 2),
        lost("server", Expire(K, LEASE), 3),
        call("b", Get(K), None, 4, 5),
        call("a", Set(K, b"y", LEASE), 3, 6, 7),
    ],
    "a swap under a lease that has ended": [
        call("a", Set(K, b"x", LEASE), 1, 1, 2),
        lost("server", Expire(K, LEASE), 3),
        call("b", Get(K), None, 4, 5),
        call("a", CompareSet(K, None, b"y", LEASE), Swap(True, b"y", 3), 6, 7),
    ],
    "a sum of what is no number": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("a", Add(K, 1), 1, 3, 4),
    ],
    "a swap that reports another value than it wrote": [
        call("a", CompareSet(K, None, b"x"), Swap(True, b"y", 1), 1, 2),
    ],
    "a removing swap that reports a revision": [
        call("a", Set(K, b"x"), 1, 1, 2),
        call("a", CompareSet(K, b"x", None), Swap(True, None, 2), 3, 4),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_is_accepted(name: str) -> None:
    assert check_key(GOOD[name]) is None


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_rejected(name: str) -> None:
    assert check_key(BAD[name]) is not None


def test_at_least_twenty_bad_histories_are_rejected() -> None:
    assert len(BAD) >= 20


def test_the_explanation_shows_what_fitted_and_what_did_not() -> None:
    text = check_key(BAD["stale read"])
    assert text is not None
    assert "1. [1, 2] a: Set(key='k', value=b'x', lease=None) -> 1" in text
    assert "-  [5, 6] b: Get(key='k') -> Entry(key='k', value=b'x', revision=1)" in text
    assert "[3, ...] a: Set(key='k', value=b'x', lease=None) -> unknown" in str(
        check_key(BAD["a read of an unknown write before it was asked"])
    )


def test_a_long_history_with_many_unknown_writes_is_decided() -> None:
    calls = [lost("a", Add(K, 1 << n), 0) for n in range(9)]
    calls += [call("b", Get(K), None, 2 * n, 2 * n + 1) for n in range(50)]
    calls.append(call("b", Get(K), entry(b"%d" % ((1 << 9) - 1), 9), 200, 201))
    assert check_key(calls) is None
    calls[-1] = call("b", Get(K), entry(b"%d" % (1 << 9), 9), 200, 201)
    assert check_key(calls) is not None


def test_an_unknown_result_is_shown_as_such() -> None:
    assert repr(lost("a", Get(K), 1)).endswith("result=UNKNOWN, called=1, returned=inf)")


# Splitting.


def test_calls_on_several_keys_are_split() -> None:
    calls = [
        call("a", MultiSet((("x", b"1"), ("y", b"2"), ("x", b"3")), LEASE), 4, 1, 2),
        call("a", MultiGet(("x", "z")), (Entry("x", b"3", 4), None), 3, 4),
        call("a", Wait(("y",)), (Entry("y", b"2", 4),), 5, 6),
        call("a", ListPrefix("x"), (Entry("x", b"3", 4),), 7, 8),
        call("a", Count(""), 2, 9, 10),
        call("a", LeaseKeep(LEASE), 1.0, 11, 12),
        lost("a", Get("x"), 13),
        lost("a", MultiGet(("x",)), 13),
        lost("a", ListPrefix("x"), 13),
        lost("b", Add("z", 1), 14),
        call("b", Guarded("g", b"1", Add("z", 2)), 2, 15, 16),
    ]
    assert split_by_key(calls) == {
        "x": [
            call("a", Set("x", b"3", LEASE), 4, 1, 2),
            call("a", Get("x"), Entry("x", b"3", 4), 3, 4),
            call("a", Get("x"), Entry("x", b"3", 4), 7, 8),
        ],
        "y": [
            call("a", Set("y", b"2", LEASE), 4, 1, 2),
            call("a", Get("y"), Entry("y", b"2", 4), 5, 6),
        ],
        "z": [
            call("a", Get("z"), None, 3, 4),
            lost("b", Add("z", 1), 14),
            call("b", Add("z", 2), 2, 15, 16),
        ],
    }


def test_a_list_that_leaves_out_a_key_is_a_read_of_its_absence() -> None:
    calls = [
        call("a", Set("x1", b"1"), 1, 1, 2),
        call("a", ListPrefix("x"), (), 3, 4),
        call("b", ListPrefix("y"), (Entry("y1", b"1", 1),), 3, 4),
    ]
    parts = split_by_key(calls)
    assert check_key(parts["x1"]) is not None
    assert parts["y1"] == [call("b", Get("y1"), Entry("y1", b"1", 1), 3, 4)]


def test_a_call_on_several_keys_must_be_split_first() -> None:
    with pytest.raises(UsageError, match="split_by_key"):
        check_key([call("a", MultiGet((K,)), (None,), 1, 2)])


# Against a brute-force checker, with the keyspace as the model.


def brute_force(calls: list[Call]) -> bool:
    """Try every order of every subset that holds all calls with a known outcome."""
    known = [one for one in calls if one.result is not UNKNOWN]
    unknown = [one for one in calls if one.result is UNKNOWN]
    for number in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, number):
            for order in itertools.permutations(known + list(chosen)):
                if respects_time(order) and explains(order):
                    return True
    return False


def respects_time(order: tuple[Call, ...]) -> bool:
    return not any(
        late.result is not UNKNOWN and late.returned < early.called
        for early, late in itertools.combinations(order, 2)
    )


def explains(order: tuple[Call, ...]) -> bool:
    """Run the calls one after the other; revisions need only to increase, not to be dense."""
    keyspace = Keyspace()
    told: dict[int, int] = {}  # the dense revision of the keyspace -> the one in the history
    for one in order:
        assert not isinstance(one.op, Expire)
        try:
            real: object = keyspace.apply(one.op, 0.0)
        except UsageError:
            return False
        if one.result is UNKNOWN:
            continue
        if plain(one.op, real) != plain(one.op, one.result):
            return False
        dense, claimed = revision_of(one.op, real), revision_of(one.op, one.result)
        if (dense == 0) != (claimed == 0) or told.setdefault(dense, claimed) != claimed:
            return False
    marks = [(0, 0), *sorted((dense, claimed) for dense, claimed in told.items() if dense)]
    return all(
        late[1] - early[1] >= late[0] - early[0] for early, late in itertools.pairwise(marks)
    )


def revision_of(op: AnyOp, result: object) -> int:
    if isinstance(op, Set):
        assert isinstance(result, int)
        return result
    return result.revision if isinstance(result, (Entry, Swap)) else 0


def plain(op: AnyOp, result: object) -> object:
    if isinstance(op, Set):
        return None
    return result._replace(revision=0) if isinstance(result, (Entry, Swap)) else result


VALUES = st.sampled_from([b"1", b"2"])
MAYBE = st.sampled_from([None, b"1", b"2"])
OPS: st.SearchStrategy[AnyOp] = st.one_of(
    st.just(Get(K)),
    st.builds(Set, st.just(K), VALUES),
    st.builds(Add, st.just(K), st.sampled_from([1, 2])),
    st.builds(CompareSet, st.just(K), MAYBE, MAYBE),
    st.just(Delete(K)),
    st.builds(Append, st.just(K), VALUES),
)


@st.composite
def histories(draw: st.DrawFn, most: int) -> list[Call]:
    """Run calls one after the other, then widen each around its moment, and forget some results."""
    keyspace = Keyspace()
    calls = []
    for moment, op in enumerate(draw(st.lists(OPS, min_size=1, max_size=most))):
        early = draw(st.floats(0, 2.5))
        late = draw(st.floats(0, 2.5))
        result: object = keyspace.apply(op, 0.0)
        if not isinstance(op, Get) and draw(st.integers(0, 4)) == 0:
            result = UNKNOWN
        calls.append(Call(f"c{moment}", op, result, moment - early, moment + late))
    return calls


def corrupted(calls: list[Call], rng: random.Random) -> list[Call]:
    index = rng.randrange(len(calls))
    one = calls[index]
    result = one.result
    wrong: object
    if result is UNKNOWN:
        wrong = False if isinstance(one.op, Delete) else 1
        if isinstance(one.op, CompareSet):
            wrong = Swap(True, one.op.desired, 1 if one.op.desired else 0)
    elif isinstance(result, bool):
        wrong = not result
    elif isinstance(result, int):
        wrong = result + rng.choice([-1, 1])
    elif isinstance(result, Swap):
        wrong = rng.choice([result._replace(ok=not result.ok), result._replace(revision=9)])
    elif isinstance(result, Entry):
        wrong = rng.choice([None, result._replace(value=b"3"), result._replace(revision=9)])
    else:
        wrong = Entry(K, b"1", 1)
    return [*calls[:index], replace(one, result=wrong), *calls[index + 1 :]]


@settings(deadline=None, max_examples=200)
@given(histories(40))
def test_what_a_store_did_one_after_the_other_is_always_accepted(calls: list[Call]) -> None:
    assert check_key(calls) is None


@settings(deadline=None, max_examples=300)
@given(histories(5), st.randoms(use_true_random=False), st.integers(0, 2))
def test_the_checker_agrees_with_brute_force(
    calls: list[Call], rng: random.Random, errors: int
) -> None:
    for _ in range(errors):
        calls = corrupted(calls, rng)
    assert (check_key(calls) is None) == brute_force(calls)


def test_a_wrong_result_is_nearly_always_found() -> None:
    rng = random.Random(5)
    found = 0
    for _ in range(300):
        keyspace = Keyspace()
        calls = []
        for moment in range(12):
            value = b"%d" % moment
            ops: list[AnyOp] = [Get(K), Set(K, value), Add(K, 1), Delete(K), Append(K, value)]
            op = rng.choice(ops)
            result: object = keyspace.apply(op, 0.0)
            calls.append(Call("c", op, result, moment - rng.random(), moment + rng.random()))
        assert check_key(calls) is None
        found += check_key(corrupted(calls, rng)) is not None
    assert found >= 240


# Revisions, watches, leases.


def test_one_revision_has_one_value() -> None:
    assert check_revisions([entry(b"x", 1), Change(K, b"x", 1), Change("j", b"y", 1)]) is None
    assert check_revisions([entry(b"x", 1), Change(K, None, 1)]) == (
        "key 'k' at revision 1 was seen as b'x' and as None"
    )


WATCHED = [Change("p/a", b"1", 1), Change("p/b", b"2", 2), Change("p/a", None, 5)]


def test_a_true_watch_is_accepted() -> None:
    assert check_watch("p/", True, WATCHED, [Entry("p/b", b"2", 2), Entry("q", b"", 9)]) is None
    assert check_watch("p/", True, WATCHED[:1], None) is None
    assert check_watch(K, False, [], []) is None
    assert check_watch(K, False, [Change(K, b"x", 1)], [entry(b"x", 1)]) is None


@pytest.mark.parametrize(
    ("changes", "final", "message"),
    [
        ([Change("q", b"", 1)], None, "is of another key"),
        ([*WATCHED, Change("p/b", b"0", 1)], None, "came after"),
        ([*WATCHED, Change("p/b", b"2", 2)], None, "came after"),
        (WATCHED[:1], [Entry("p/a", b"1", 1), Entry("p/b", b"2", 2)], "of 'p/b' was None"),
        (WATCHED[:2], [Entry("p/b", b"2", 2)], "of 'p/a' was Change"),
        (WATCHED, [Entry("p/b", b"3", 6)], "of 'p/b' was Change"),
        (WATCHED, [Entry("p/b", b"2", 6)], "of 'p/b' was Change"),
        (WATCHED, [Entry("p/a", b"9", 7), Entry("p/b", b"2", 2)], "the end is Entry"),
    ],
)
def test_a_watch_that_broke_its_word_is_rejected(
    changes: list[Change], final: list[Entry] | None, message: str
) -> None:
    text = check_watch("p/", True, changes, final)
    assert text is not None
    assert message in text


def test_a_watch_of_one_key_refuses_longer_ones() -> None:
    assert check_watch(K, False, [Change("kk", b"", 1)], None) is not None


@pytest.mark.parametrize(
    ("ended", "verdict"),
    [
        (None, None),
        (6.0, None),
        (7.0, None),
        (5.5, "lease of 2 s: ended at 5.5, 0.5 s early"),
        (7.5, "lease of 2 s: ended at 7.5, 1.5 s late"),
    ],
)
def test_a_lease_ends_on_time(ended: float | None, verdict: str | None) -> None:
    assert check_lease(2.0, [1.0, 2.5, 4.0], ended) == verdict
