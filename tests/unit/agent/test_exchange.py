"""What the agents of a round tell each other, over a store."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.exchange import (
    REPORT_BYTES_MAX,
    REPORT_FAILURES_MAX,
    decode_report,
    meet_at_exit,
    publish,
    say_done,
    swap,
    watch_reports,
)
from holdfast.agent.roles import NodeInfo
from holdfast.clock import Deadline
from holdfast.errors import PeerViolation, StoreUnavailable, TimeoutExpired
from holdfast.rendezvous.handler import Round
from holdfast.store.fenced import FencedStore
from holdfast.store.memory import MemoryStore
from holdfast.store.prefix import PrefixStore
from tests.unit.agent.stories import failure

NOW = 1_700_000_000.0


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


def test_nodes_learn_who_the_others_are_and_whether_there_is_a_torch_store(here: Here) -> None:
    nodes = NodeInfo("trainer", 4), NodeInfo("evaluator", 1)
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(swap, here(rank), nodes[rank], torch_store, never, soon())
            for rank, torch_store in ((0, True), (1, False))  # only node 0's word counts
        ]
    assert [one.result() for one in both] == [(nodes, True)] * 2


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("1:2 nodes", []),
        (
            "2:2 nodes",
            ["this node was told of '2:2 nodes', node 0 of '1:2 nodes': give all nodes the same"],
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
    assert [one.result() for one in both] == [(nodes, False)] * 2
    assert caplog.messages == told


def test_a_round_that_is_over_needs_no_exchange(here: Here) -> None:
    one = here(0)
    calls = iter([False, True])
    assert swap(one, NodeInfo("", 1), False, lambda: next(calls), soon()) is None
    here.end()
    assert swap(one, NodeInfo("", 1), False, never, soon()) is None


def test_who_waits_too_long_for_the_others_says_for_whom(here: Here) -> None:
    with pytest.raises(TimeoutExpired) as raised:
        swap(here(0), NodeInfo("", 1), False, never, Deadline.after(0.0))
    assert "node/1" in str(raised.value.waiting_for)


def test_what_another_node_says_of_itself_is_judged(here: Here) -> None:
    here(1).store.set("node/1", b"[]")
    with pytest.raises(PeerViolation):
        swap(here(0), NodeInfo("", 1), False, never, soon())


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


def test_the_exit_barrier_says_who_is_late(here: Here) -> None:
    say_done(here(0), soon())
    with pytest.raises(TimeoutExpired, match="waited for node 1") as raised:
        meet_at_exit(here(0), never, Deadline.after(0.0))
    assert raised.value.waiting_for


def test_nobody_waits_at_the_exit_when_it_makes_no_sense(here: Here) -> None:
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
