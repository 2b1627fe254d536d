"""What the agents of a round tell each other, over a store."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.exchange import (
    NAMED_MAX,
    PART,
    REPORT_BYTES_MAX,
    REPORT_FAILURES_MAX,
    decode_report,
    meet_at_exit,
    publish,
    say_done,
    swap,
    watch_reports,
)
from holdfast.agent.roles import NodeInfo, divide
from holdfast.clock import Deadline
from holdfast.errors import PeerViolation, StoreUnavailable, TimeoutExpired
from holdfast.rendezvous.handler import Round
from holdfast.store.fenced import FencedStore
from holdfast.store.memory import MemoryStore
from holdfast.store.ops import Op
from holdfast.store.prefix import PrefixStore
from holdfast.store.store import Watch
from holdfast.store.view import View
from tests.unit.agent.stories import failure

NOW = 1_700_000_000.0
R = TypeVar("R")


def soon() -> Deadline:
    return Deadline.after(20.0)


def never() -> bool:
    return False


class Here:
    """Places of the two nodes of round 7."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._store.set("round", b"7")

    def __call__(self, rank: int) -> Round:
        return Round(
            number=7,
            rank=rank,
            world_size=2,
            store=PrefixStore(FencedStore(self._store, "round", b"7"), "r7/"),
            board=PrefixStore(self._store, "board/"),
            master_address="localhost",
            master_port=1,
            members=(),
            reason="",
        )

    def end(self) -> None:
        """End the round."""
        self._store.set("round", b"8")

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def here() -> Iterator[Here]:
    here = Here()
    yield here
    here.close()


def test_nodes_learn_about_each_other_and_whether_there_is_a_torch_store(here: Here) -> None:
    nodes = NodeInfo("trainer", 4), NodeInfo("evaluator", 1)
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(swap, here(rank), nodes[rank], torch_store, never, soon())
            for rank, torch_store in ((0, True), (1, False))  # only node 0's word counts
        ]
    shares = divide(nodes)
    assert [one.result() for one in both] == [(share, True) for share in shares]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("1:2 nodes", []),
        (
            "2:2 nodes",
            [
                (
                    "nodes disagree: this one was started with '2:2 nodes', "
                    "node 0 with '1:2 nodes'; start all nodes with the same"
                )
            ],
        ),
    ],
)
def test_a_node_that_was_told_otherwise_says_so(
    here: Here, other: str, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    nodes = NodeInfo("", 1), NodeInfo("", 1)
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(swap, here(rank), nodes[rank], False, never, soon(), terms)
            for rank, terms in ((0, "1:2 nodes"), (1, other))
        ]
    shares = divide(nodes)
    assert [one.result() for one in both] == [(share, False) for share in shares]
    assert caplog.messages == told


def test_a_round_that_is_over_needs_no_exchange(here: Here) -> None:
    one = here(0)
    calls = iter([False, True])
    assert swap(one, NodeInfo("", 1), False, lambda: next(calls), soon()) is None
    calls = iter([False, True])
    assert swap(here(1), NodeInfo("", 1), False, lambda: next(calls), soon()) is None
    one.store.set("node/1", NodeInfo("", 1).encode())
    here.end()
    for rank in (0, 1):
        assert swap(here(rank), NodeInfo("", 1), False, never, soon()) is None


def test_a_node_that_waits_too_long_names_the_missing_nodes(here: Here) -> None:
    with pytest.raises(TimeoutExpired) as raised:
        swap(here(0), NodeInfo("", 1), False, never, Deadline.after(0.0))
    assert "node/1" in str(raised.value.waiting_for)


def test_what_another_node_says_of_itself_is_judged(here: Here) -> None:
    here(1).store.set("node/1", b"[]")
    with pytest.raises(PeerViolation):
        swap(here(0), NodeInfo("", 1), False, never, soon())


def test_what_node_0_tells_is_judged(here: Here) -> None:
    here(0).store.multi_set({"share/1": b"[]", "torch_store": b"0", "terms": b""})
    with pytest.raises(PeerViolation):
        swap(here(1), NodeInfo("", 1), False, never, soon())


class Counting(View):
    """A store that counts operations, and the bytes of what they are given and return."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, "counted")
        self.ops = 0
        self.bytes = 0

    def _perform(self, op: Op[R], deadline: Deadline) -> R:
        self.ops += 1
        result = self._store._perform(op, deadline)
        self.bytes += len(repr(op)) + len(repr(result))
        return result

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        raise NotImplementedError


def costs(size: int) -> tuple[int, int]:
    """Return operations and bytes of the last node of a round so large: ranks, and exit barrier."""
    mine = NodeInfo("trainer", 8)
    with MemoryStore() as store:
        counting = Counting(store)
        place = replace(Here()(size - 1), world_size=size, store=counting, board=counting)
        store.set(f"share/{size - 1}", divide([mine] * size)[-1].encode())
        store.multi_set({"torch_store": b"1", "terms": b"words"})
        store.set("7/done_count", b"%d" % (size - 1))
        assert swap(place, mine, False, never, soon(), "words") is not None
        say_done(place, soon())
        meet_at_exit(place, never, soon())
        return counting.ops, counting.bytes


def test_what_a_node_pays_does_not_grow_with_the_number_of_nodes() -> None:
    """EX-1, EX-2."""
    (few_ops, few_bytes), (many_ops, many_bytes) = costs(1024), costs(16_000)
    assert few_ops == many_ops == 6
    assert many_bytes - few_bytes < 40  # digits


def test_node_0_reads_and_tells_by_parts(here: Here) -> None:
    """EX-1."""
    size = 2 * PART + 1
    with MemoryStore() as store:
        counting = Counting(store)
        place = replace(here(0), world_size=size, store=counting)
        infos = [NodeInfo("", rank % 3 + 1) for rank in range(size)]
        store.multi_set({f"node/{rank}": infos[rank].encode() for rank in range(1, size)})
        assert swap(place, infos[0], False, never, soon()) == (divide(infos)[0], False)
        assert counting.ops == 5
        for rank, share in enumerate(divide(infos)[1:], 1):
            assert store.get(f"share/{rank}") == share.encode()


# Reports.


def test_reports_reach_the_others_also_after_the_end_of_the_round(here: Here) -> None:
    where = here(1)
    here.end()
    told = failure(3, at=NOW - 2.0)
    publish(where, (told,), True, NOW, soon())
    with watch_reports(here(0), soon()) as watch:
        change = next(iter(watch))
        assert change.key.rpartition("/")[2] == "1"
        assert change.value is not None
        failures, final = decode_report(change.value, NOW + 0.1)
    assert final
    assert failures == (replace(told, moment=told.at),)


def test_a_report_of_a_host_whose_clock_is_wrong_is_put_right(here: Here) -> None:
    """Its failures are as old as it says, whatever its clock says."""
    where = here(1)
    with watch_reports(here(0), soon()) as watch:
        publish(where, (failure(3, at=500.0),), False, 502.0, soon())
        value = next(iter(watch)).value
    assert value is not None
    (told,), final = decode_report(value, NOW)
    assert (told.when, final) == (NOW - 2.0, False)


def test_a_report_has_a_largest_size(here: Here) -> None:
    many = tuple(failure(rank) for rank in range(2 * REPORT_FAILURES_MAX))
    publish(here(1), many, False, NOW, soon())
    failures, _ = decode_report(here(0).board.get("7/failed/1") or b"", NOW)
    assert [one.rank for one in failures] == list(range(REPORT_FAILURES_MAX))


@pytest.mark.parametrize("letter", ["x", "ж", "語", "\x01"])
def test_a_report_of_long_failures_fits_into_any_store(here: Here, letter: str) -> None:
    """The first cause is whole; later ones lose what their error files said, the last all."""
    long = replace(
        failure(0),
        message=letter * 10_000,
        traceback=letter * 10_000,
        error_data={"message": letter * 1_500},
    )
    many = tuple(replace(long, rank=rank, at=NOW - rank) for rank in range(REPORT_FAILURES_MAX))
    publish(here(1), many, False, NOW, soon())
    value = here(0).board.get("7/failed/1") or b""
    assert len(value) < REPORT_BYTES_MAX * 1.01
    failures, _ = decode_report(value, NOW)
    last = REPORT_FAILURES_MAX - 1
    assert [one.rank for one in failures] == [last - place for place in range(len(failures))]
    assert failures[0].error_data == long.error_data
    assert letter != "x" or len(failures) == REPORT_FAILURES_MAX


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"final": 1, "failures": []}',
        b'{"final": true, "failures": {}}',
        b'{"final": true, "failures": [{}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(PeerViolation):
        decode_report(data, NOW)


@given(
    st.binary()
    | st.builds(
        lambda j: json.dumps(j).encode(),
        st.dictionaries(
            st.sampled_from(("final", "failures", "x")),
            st.none() | st.booleans() | st.lists(st.none()),
        ),
    )
)
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    try:
        decode_report(data, NOW)
    except PeerViolation:
        pass


# The exit barrier.


def test_nodes_wait_for_each_other_at_the_exit(here: Here) -> None:
    with ThreadPoolExecutor(1) as pool:
        say_done(here(0), soon())
        first = pool.submit(meet_at_exit, here(0), never, soon())
        assert here(1).board.get("7/done/0") == b""
        assert not first.done()
        say_done(here(1), soon())
        meet_at_exit(here(1), never, soon())
        first.result()


def test_the_exit_barrier_names_the_late_node(here: Here) -> None:
    say_done(here(0), soon())
    with pytest.raises(TimeoutExpired, match="waited for node 1") as raised:
        meet_at_exit(here(0), never, Deadline.after(0.0))
    assert raised.value.waiting_for


def test_a_late_node_among_too_many_is_not_named(here: Here) -> None:
    many = replace(here(0), world_size=NAMED_MAX + 1)
    for rank in range(NAMED_MAX):
        many.board.set(f"7/done/{rank}", b"")
    with pytest.raises(TimeoutExpired, match=f"waited for a node after {NAMED_MAX - 1}$"):
        meet_at_exit(many, never, Deadline.after(0.0))


def test_ex3_a_last_node_that_did_not_hear_that_it_was_the_last(here: Here) -> None:
    here(0).board.set("7/done_count", b"2")
    meet_at_exit(here(0), never, soon())


def test_no_exit_barrier_when_it_makes_no_sense(here: Here) -> None:
    stop = threading.Event()
    stop.set()
    meet_at_exit(here(0), stop.is_set, soon())


def test_a_wait_at_the_exit_ends_soon_after_it_makes_no_sense(here: Here) -> None:
    answers = iter([False, True])
    meet_at_exit(here(0), lambda: next(answers), soon())


@pytest.mark.parametrize("comes_back", [True, False])
def test_the_exit_barrier_bears_with_a_store_that_cannot_be_reached(
    here: Here, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    say_done(here(0), soon())
    say_done(here(1), soon())
    answers = [StoreUnavailable("nobody there")] * 2

    def wait(keys: object, timeout: float | None) -> None:
        if answers or not comes_back:
            raise answers.pop() if answers else StoreUnavailable("still nobody")

    place = here(0)
    monkeypatch.setattr(place.board, "wait", wait)
    if comes_back:
        meet_at_exit(place, never, soon())
        assert not answers
    else:
        with pytest.raises(StoreUnavailable, match="nobody there"):
            meet_at_exit(place, never, Deadline.after(0.0))
