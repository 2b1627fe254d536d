"""The meaning of torch's store requests: recorded exchanges, waits, queues, barriers, bounds."""

from __future__ import annotations

import contextlib
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InternalError, PeerViolation
from holdfast.store.c10d import messages as c10d
from holdfast.store.c10d.space import ITEM_BYTES, C10dSpace, Reply, parse_decimal
from holdfast.store.c10d.wire import (
    CANCELLED,
    MESSAGE_BYTES_MAX,
    READY,
    VALUE_BYTES_MAX,
    encode_bytes,
    encode_i64,
)
from tests.unit.store.c10d.vectors import VECTORS

MIN, MAX = -(1 << 63), (1 << 63) - 1


class Talk:
    """A space that is checked after each request."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.space = C10dSpace(max_bytes)

    def __call__(self, conn: int, request: c10d.Request) -> list[Reply]:
        try:
            return self.space.handle(conn, request)
        finally:
            self.space.check_invariants()

    def value(self, key: bytes) -> bytes:
        ((_, reply),) = self(99, c10d.Get(key))
        return reply[8:]


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_the_recorded_session_is_answered_as_recorded(talk: Talk) -> None:
    for vector in VECTORS:
        replies = [reply for request in vector.requests for reply in talk(1, request)]
        assert b"".join(data for _, data in replies) == vector.reply, vector.what
        assert {conn for conn, _ in replies} <= {1}


# Keys.


def test_a_missing_key_reads_as_empty(talk: Talk) -> None:
    talk(1, c10d.Set(b"k", b"v"))
    assert talk(1, c10d.Get(b"x")) == [(1, encode_bytes(b""))]
    both = encode_bytes(b"v") + encode_bytes(b"")
    assert talk(1, c10d.MultiGet((b"k", b"x"))) == [(1, both)]
    assert talk(1, c10d.MultiGet(())) == [(1, b"")]


@pytest.mark.parametrize(
    ("stored", "expected", "after", "reply"),
    [
        (None, b"", b"new", b"new"),
        (None, b"old", None, b"old"),
        (b"old", b"old", b"new", b"new"),
        (b"old", b"", b"old", b"old"),
        (b"old", b"other", b"old", b"old"),
        (b"", b"", b"new", b"new"),
    ],
)
def test_compare_set(
    talk: Talk, stored: bytes | None, expected: bytes, after: bytes | None, reply: bytes
) -> None:
    if stored is not None:
        talk(1, c10d.Set(b"k", stored))
    assert talk(1, c10d.CompareSet(b"k", expected, b"new")) == [(1, encode_bytes(reply))]
    assert talk(1, c10d.Check((b"k",))) == [(1, b"\x01" if after is None else b"\x00")]
    assert talk.value(b"k") == (after or b"")


def test_append_creates_and_grows_beyond_what_a_request_may_hold() -> None:
    talk = Talk(1 << 26)
    talk(1, c10d.Append(b"k", b"v" * VALUE_BYTES_MAX))
    talk(1, c10d.Append(b"k", b"0123456789"))
    talk(1, c10d.Append(b"k", b""))
    assert talk.value(b"k") == b"v" * VALUE_BYTES_MAX + b"0123456789"


def test_append_leaves_earlier_replies_and_compares_well(talk: Talk) -> None:
    talk(1, c10d.Set(b"k", b"a"))
    before = talk(1, c10d.Get(b"k"))
    talk(1, c10d.Append(b"k", b"b"))
    talk(1, c10d.Append(b"k", b"c"))
    assert before == [(1, encode_bytes(b"a"))]
    assert talk(1, c10d.CompareSet(b"k", b"abc", b"12")) == [(1, encode_bytes(b"12"))]
    talk(1, c10d.Append(b"k", b"3"))
    assert talk(1, c10d.Add(b"k", 1)) == [(1, encode_i64(124))]


def test_keys_are_counted_listed_and_deleted(talk: Talk) -> None:
    talk(1, c10d.MultiSet(((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))))
    talk(1, c10d.QueuePush(b"q", b"x"))
    assert talk.value(b"a") == b"3"
    assert talk(1, c10d.NumKeys()) == [(1, encode_i64(2))]
    assert talk(1, c10d.Delete(b"a")) == [(1, encode_i64(1))]
    assert talk(1, c10d.Delete(b"a")) == [(1, encode_i64(0))]
    assert talk(1, c10d.ListKeys()) == [(1, encode_i64(1) + encode_bytes(b"b"))]
    talk(1, c10d.Delete(b"b"))
    talk(1, c10d.QueuePop(b"q"))
    assert talk.space.used == 0


# Counters.


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        (b"-7", -7),
        (b"  +12abc", 12),
        (b"\t\n\v\f\r 5", 5),
        (b"0x10", 0),
        (b"007", 7),
        (b"0" * 5000 + b"9", 9),
        (b"12 34", 12),
        (b"12\x0034", 12),
        (b"%d" % MAX, MAX),
        (b"%d" % MIN, MIN),
    ],
)
def test_numbers_are_read_as_c_reads_them(text: bytes, number: int) -> None:
    assert parse_decimal(text) == number
    assert parse_decimal(bytearray(text)) == number


@pytest.mark.parametrize(
    "text",
    [b"", b"abc", b"+", b"-", b" ", b"+-1", b"%d" % (MAX + 1), b"%d" % (MIN - 1), b"9" * 5000],
)
def test_cs1_what_is_no_number_closes_the_connection_and_stays(talk: Talk, text: bytes) -> None:
    talk(1, c10d.Set(b"k", text))
    with pytest.raises(PeerViolation, match="c10d"):
        talk(1, c10d.Add(b"k", 1))
    with pytest.raises(PeerViolation, match="c10d"):
        talk(1, c10d.Barrier(b"k", 2))
    assert talk.value(b"k") == text


def test_sums_wrap_around(talk: Talk) -> None:
    assert talk(1, c10d.Add(b"k", MAX)) == [(1, encode_i64(MAX))]
    assert talk(1, c10d.Add(b"k", 1)) == [(1, encode_i64(MIN))]
    assert talk(1, c10d.Add(b"k", -1)) == [(1, encode_i64(MAX))]
    assert talk.value(b"k") == b"%d" % MAX


# Waits.


@pytest.mark.parametrize(
    "write",
    [
        c10d.Set(b"k", b"v"),
        c10d.Add(b"k", 1),
        c10d.CompareSet(b"k", b"", b"v"),
        c10d.Append(b"k", b"v"),
        c10d.MultiSet(((b"x", b""), (b"k", b""))),
        c10d.QueuePush(b"k", b"v"),
        c10d.Barrier(b"k", 1),
    ],
)
def test_cs5_each_kind_of_write_wakes_a_waiter_once(talk: Talk, write: c10d.Request) -> None:
    assert talk(1, c10d.Wait((b"k", b"k"))) == []
    assert (1, READY) in talk(2, write)
    assert talk(2, c10d.Set(b"k", b"again")) == []


def test_a_write_wakes_every_waiter_after_its_own_reply(talk: Talk) -> None:
    for conn in (3, 1, 2):
        talk(conn, c10d.Wait((b"k",)))
    assert talk(4, c10d.Add(b"k", 1)) == [
        (4, encode_i64(1)),
        (3, READY),
        (1, READY),
        (2, READY),
    ]


def test_an_operation_that_stores_nothing_wakes_no_waiter(talk: Talk) -> None:
    talk(1, c10d.Wait((b"k",)))
    assert talk(2, c10d.CompareSet(b"k", b"old", b"new")) == [(2, encode_bytes(b"old"))]
    assert talk(2, c10d.Delete(b"k")) == [(2, encode_i64(0))]
    assert talk(2, c10d.Barrier(b"k", 2)) == []
    assert talk(2, c10d.CancelWait()) == [(2, CANCELLED)]
    assert talk(2, c10d.Set(b"k", b"")) == [(1, READY)]


def test_a_wait_is_ready_at_once_if_nothing_is_missing(talk: Talk) -> None:
    talk(1, c10d.Set(b"k", b""))
    talk(1, c10d.QueuePush(b"q", b""))
    assert talk(1, c10d.Wait(())) == [(1, READY)]
    assert talk(1, c10d.Wait((b"k", b"q"))) == [(1, READY)]
    assert talk(1, c10d.Check(())) == [(1, READY)]


def test_cs5_a_wait_counts_down_and_forgets_deletions(talk: Talk) -> None:
    talk(1, c10d.Wait((b"a", b"b")))
    assert talk(2, c10d.Set(b"a", b"")) == []
    talk(2, c10d.Delete(b"a"))
    assert talk(2, c10d.Set(b"a", b"")) == []
    talk(2, c10d.Delete(b"a"))
    assert talk(2, c10d.Set(b"b", b"")) == [(1, READY)]


def test_a_wait_for_a_filled_queue_and_a_missing_key_needs_only_the_key(talk: Talk) -> None:
    talk(2, c10d.QueuePush(b"q", b"x"))
    talk(1, c10d.Wait((b"q", b"k")))
    assert talk(2, c10d.Set(b"k", b"")) == [(1, READY)]


def test_other_requests_are_answered_during_a_wait(talk: Talk) -> None:
    talk(1, c10d.Wait((b"k",)))
    assert talk(1, c10d.Ping(5)) == [(1, b"\x05\0\0\0")]
    assert talk(1, c10d.Add(b"k", 1)) == [(1, encode_i64(1)), (1, READY)]


@pytest.mark.parametrize("second", [c10d.Wait((b"x",)), c10d.Wait(()), c10d.Barrier(b"x", 1)])
def test_cs3_a_second_wait_is_a_violation(talk: Talk, second: c10d.Request) -> None:
    talk(1, c10d.Wait((b"k",)))
    with pytest.raises(PeerViolation, match="second wait"):
        talk(1, second)
    assert talk(2, c10d.Check((b"x",))) == [(2, b"\x01")]


def test_cs2_cancelling_is_always_answered_once(talk: Talk) -> None:
    assert talk(1, c10d.CancelWait()) == [(1, CANCELLED)]
    talk(1, c10d.Wait((b"k",)))
    assert talk(1, c10d.CancelWait()) == [(1, CANCELLED)]
    assert talk(1, c10d.CancelWait()) == [(1, CANCELLED)]
    assert talk(2, c10d.Set(b"k", b"")) == []
    assert talk(1, c10d.Wait((b"k",))) == [(1, READY)]


def test_cs3_a_closed_connection_leaves_no_wait(talk: Talk) -> None:
    talk(1, c10d.Wait((b"k", b"x")))
    talk(2, c10d.Wait((b"k",)))
    talk.space.disconnect(1)
    talk.space.disconnect(3)
    assert talk(4, c10d.Set(b"k", b"")) == [(2, READY)]
    talk(4, c10d.Delete(b"k"))
    assert talk.space.used == 0


# Queues.


def test_a_queue_gives_in_the_order_of_pushing(talk: Talk) -> None:
    for value in (b"a", b"", b"c"):
        talk(1, c10d.QueuePush(b"q", value))
    for length, value in ((3, b"a"), (2, b""), (1, b"c")):
        assert talk(1, c10d.QueueLen(b"q")) == [(1, encode_i64(length))]
        assert talk(1, c10d.QueuePop(b"q")) == [(1, encode_i64(length) + encode_bytes(value))]
    assert talk(1, c10d.QueueLen(b"q")) == [(1, encode_i64(0))]
    assert talk(1, c10d.QueuePop(b"q")) == [(1, encode_i64(0))]
    assert talk.space.used == 0


def test_queues_and_keys_of_one_name_are_apart(talk: Talk) -> None:
    talk(1, c10d.QueuePush(b"n", b"queued"))
    assert talk.value(b"n") == b""
    assert talk(1, c10d.Delete(b"n")) == [(1, encode_i64(0))]
    assert talk(1, c10d.Check((b"n",))) == [(1, READY)]
    talk(1, c10d.Set(b"n", b"stored"))
    talk(1, c10d.QueuePop(b"n"))
    assert talk.value(b"n") == b"stored"


def test_a_push_wakes_only_the_client_that_has_waited_longest(talk: Talk) -> None:
    talk(1, c10d.Wait((b"q",)))
    talk(2, c10d.Wait((b"q",)))
    assert talk(3, c10d.QueuePush(b"q", b"x")) == [(1, READY)]
    assert talk(1, c10d.Wait((b"other",))) == []
    assert talk(3, c10d.QueuePush(b"q", b"y")) == [(2, READY)]
    assert talk(3, c10d.QueuePush(b"q", b"z")) == []
    assert talk(3, c10d.Set(b"other", b"")) == [(1, READY)]


# Barriers.


def test_a_barrier_releases_all_at_the_last_arrival(talk: Talk) -> None:
    assert talk(1, c10d.Barrier(b"b", 3)) == []
    assert talk(2, c10d.Barrier(b"b", 3)) == []
    assert talk(3, c10d.Barrier(b"b", 3)) == [(3, READY), (1, READY), (2, READY)]
    assert talk.value(b"b") == b"3"
    assert talk(1, c10d.Barrier(b"b", 3)) == [(1, READY)]


def test_a_barrier_of_zero_ranks_passes(talk: Talk) -> None:
    assert talk(1, c10d.Barrier(b"b", 0)) == [(1, READY)]
    assert talk(1, c10d.Barrier(b"c", -5)) == [(1, READY)]


def test_a_client_that_gave_up_stays_counted(talk: Talk) -> None:
    talk(1, c10d.Barrier(b"b", 2))
    talk(1, c10d.CancelWait())
    assert talk(2, c10d.Barrier(b"b", 2)) == [(2, READY)]


def test_a_plain_wait_and_a_plain_write_meet_a_barrier(talk: Talk) -> None:
    talk(1, c10d.Wait((b"b",)))
    assert talk(2, c10d.Barrier(b"b", 3)) == []
    assert talk(4, c10d.Wait((b"b",))) == [(4, READY)]  # the counter is there
    assert talk(3, c10d.Barrier(b"b", 3)) == []
    assert talk(4, c10d.Set(b"b", b"7")) == [(1, READY), (2, READY), (3, READY)]


# Bounds.


@pytest.mark.parametrize(
    "request_",
    [
        c10d.Set(b"new", b""),
        c10d.Set(b"k", b"v" * 101),
        c10d.Add(b"new", 1),
        c10d.CompareSet(b"new", b"", b""),
        c10d.CompareSet(b"k", b"v" * 100, b"v" * 101),
        c10d.Append(b"k", b"v"),
        c10d.Append(b"new", b"v"),
        c10d.MultiSet(((b"k", b""), (b"new", b""))),
        c10d.QueuePush(b"q", b""),
        c10d.Wait((b"new",)),
        c10d.Barrier(b"new", 1),
        c10d.Barrier(b"new", 2),
    ],
)
def test_cs4_a_full_store_disconnects_a_client_that_writes_more(request_: c10d.Request) -> None:
    talk = Talk(101 + ITEM_BYTES)
    talk(1, c10d.Set(b"k", b"v" * 100))
    with pytest.raises(PeerViolation, match="full"):
        talk(1, request_)
    talk.space.disconnect(1)
    talk.space.check_invariants()
    assert talk.value(b"k") == b"v" * 100
    assert talk(1, c10d.NumKeys()) == [(1, encode_i64(1))]
    talk(1, c10d.Set(b"k", b"w" * 100))
    talk(1, c10d.Delete(b"k"))
    assert talk.space.used == 0


def test_a_multi_set_that_fits_in_the_end_is_taken() -> None:
    talk = Talk(2 * (1 + 50 + ITEM_BYTES))
    talk(1, c10d.MultiSet(((b"a", b"v" * 100), (b"b", b""))))
    talk(1, c10d.MultiSet(((b"b", b"v" * 100), (b"a", b""))))
    assert talk.value(b"b") == b"v" * 100


def test_an_amplified_reply_is_refused() -> None:
    talk = Talk(1 << 24)
    talk(1, c10d.Set(b"k", b"v" * VALUE_BYTES_MAX))
    with pytest.raises(PeerViolation, match="reply"):
        talk(1, c10d.MultiGet((b"k",) * 8))
    ((_, reply),) = talk(1, c10d.MultiGet((b"k",) * 7))
    assert len(reply) == 7 * (8 + VALUE_BYTES_MAX)


def test_a_value_cannot_be_appended_without_end() -> None:
    talk = Talk(1 << 30)
    for _ in range(MESSAGE_BYTES_MAX // VALUE_BYTES_MAX):
        talk(1, c10d.Append(b"k", bytes(VALUE_BYTES_MAX)))
    with pytest.raises(PeerViolation, match="grow"):
        talk(1, c10d.Append(b"k", b"x"))


def test_check_invariants_finds_each_contradiction() -> None:
    def broken(breaks: str) -> C10dSpace:
        space = C10dSpace()
        space.handle(1, c10d.Set(b"k", b""))
        space.handle(1, c10d.Wait((b"x",)))
        match breaks:
            case "list":
                space._waiters[b"y"] = {1: None}
            case "queue":
                space._queues[b"q"] = deque()
            case "wait":
                space._waits[2] = type(space._waits[1])(set(), 0)
            case _:
                space._used += 1
        return space

    for breaks in ("list", "queue", "wait", "cost"):
        with pytest.raises(InternalError):
            broken(breaks).check_invariants()


# Any story.

names = st.sampled_from([b"a", b"b", b"c"])
texts = st.sampled_from([b"", b"1", b"x", b"y" * 300])
stories = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.one_of(
            st.builds(c10d.Set, names, texts),
            st.builds(c10d.CompareSet, names, texts, texts),
            st.builds(c10d.Add, names, st.integers(-3, 3)),
            st.builds(c10d.Wait, st.lists(names, max_size=3).map(tuple)),
            st.builds(c10d.Delete, names),
            st.builds(c10d.Append, names, texts),
            st.builds(c10d.MultiSet, st.lists(st.tuples(names, texts), max_size=3).map(tuple)),
            st.just(c10d.CancelWait()),
            st.builds(c10d.QueuePush, names, texts),
            st.builds(c10d.QueuePop, names),
            st.builds(c10d.Barrier, names, st.integers(1, 3)),
            st.none(),
        ),
    ),
    max_size=60,
)


@given(stories)
def test_any_story_keeps_the_invariants_and_answers_each_wait_once(
    story: list[tuple[int, c10d.Request | None]],
) -> None:
    talk = Talk(4 * ITEM_BYTES + 700)
    waiting: set[int] = set()
    for conn, request in story:
        replies: list[Reply] | None = None
        if request is not None:
            with contextlib.suppress(PeerViolation):
                replies = talk(conn, request)
        if replies is None:  # the connection was closed, by either side
            talk.space.disconnect(conn)
            talk.space.check_invariants()
            waiting.discard(conn)
            continue
        if isinstance(request, c10d.Wait | c10d.Barrier):
            assert conn not in waiting
            waiting.add(conn)
        if isinstance(request, c10d.CancelWait):
            assert replies == [(conn, CANCELLED)]
            waiting.discard(conn)
        for to, reply in replies:
            if reply == READY:
                waiting.remove(to)
            assert to == conn or reply == READY
    assert waiting == set(talk.space._waits)
