"""A node at work over a store: its threads, what it tells, and how it ends."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, StoreFull, StoreUnavailable, TimeoutExpired
from holdfast.ids import NodeId, RunId
from holdfast.observe.events import RoundAwaited, RoundEnded, RoundFormed, RunEnded
from holdfast.observe.sinks import MemorySink
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.inputs import CloseRun, FinishRound, LeaveRun, NodeTick
from holdfast.rendezvous.machine import NodeMachine
from holdfast.rendezvous.model import Announcement, Keys, Phase
from holdfast.rendezvous.ranks import RankPolicy, sticky_ranks
from holdfast.rendezvous.session import NodeSession
from holdfast.store.memory import MemoryStore
from holdfast.store.ops import CompareSet, LeaseGrant, LeaseKeep, Op
from holdfast.store.store import Watch

RUN = RunId("job")
SOON = 20.0
Start = Callable[..., NodeSession]


class OddStore(MemoryStore):
    """A store that fails as a test wishes."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: HoldfastError | None = None
        self.failing: type | None = None
        self.asked: list[tuple[str, float | None]] = []
        self.kept = threading.Event()
        self.no_watch: HoldfastError | None = None
        self.during: Callable[[], None] | None = None  # called within the next operation

    def _perform(self, op: Op, deadline: Deadline):  # type: ignore[type-arg, no-untyped-def]
        self.asked.append((type(op).__name__, deadline.remaining()))
        if isinstance(op, LeaseKeep):
            self.kept.set()
        if self.failure is not None and (self.failing is None or isinstance(op, self.failing)):
            raise self.failure
        if self.during is not None:
            during, self.during = self.during, None
            during()
        return super()._perform(op, deadline)

    def _open_watch(self, key: str, prefix: bool, deadline: Deadline) -> Watch:
        if self.no_watch is not None:
            raise self.no_watch
        return super()._open_watch(key, prefix, deadline)


@pytest.fixture
def store() -> Iterator[OddStore]:
    with OddStore() as store:
        yield store


@pytest.fixture
def start(store: OddStore) -> Iterator[Start]:
    """Start nodes; they are stopped when the test ends."""
    sessions: list[NodeSession] = []

    def start(
        name: str,
        rules: Rules,
        *,
        sink: MemorySink | None = None,
        rank: RankPolicy = sticky_ranks,
        heartbeat_s: float = 5.0,
    ) -> NodeSession:
        me = Announcement(NodeId(name), name, "127.0.0.1", 1, Phase.WAITING, 0, None, "")
        node = NodeMachine(me, Keys(RUN), rules, rank)
        session = NodeSession(
            RUN, node, store, op_timeout_s=30.0, heartbeat_s=heartbeat_s, sink=sink or MemorySink()
        )
        session.start()
        sessions.append(session)
        return session

    yield start
    for session in sessions:
        assert session.stop()
        assert session.stop()  # again changes nothing


def until_heard(session: NodeSession, done: Callable[[], object]) -> None:
    assert session.wait(lambda: bool(done()), Deadline.after(SOON))


ALONE = Rules(min_nodes=1, max_nodes=1)
TWO = Rules(min_nodes=2, max_nodes=2)


def test_what_happens_is_told_as_events(start: Start) -> None:
    sink = MemorySink()
    session = start("a", TWO, sink=sink)
    session.ask("", "first")
    until_heard(session, lambda: session.progress and session.progress.have == 1)
    other = start("b", TWO)
    other.ask("", "first")
    until_heard(session, lambda: session.ready)
    until_heard(other, lambda: other.ready)
    other.ask("a worker failed", "second")
    until_heard(session, lambda: session.over)
    session.request(CloseRun("the job failed", failed=False, wall=0.0))
    until_heard(session, lambda: session.closed)
    session.stop()
    told = [event for event in sink.events if not isinstance(event, RoundAwaited)]
    assert [type(event) for event in told] == [RoundFormed, RoundEnded, RunEnded]
    assert [str(event) for event in told] == [
        "run job: rank 0 of 2 in round 1: round 1 is complete with 2: all places are taken",
        "run job: round 1 is over: b: a worker failed",
        "run job: the job failed",
    ]
    waits = [str(event) for event in sink.events if isinstance(event, RoundAwaited)]
    alone = re.compile(r"run job: have 1 of 2: waiting for 1 more, (600\.0|59\d\.\d) s left")
    assert any(map(alone.fullmatch, waits)), waits
    assert all(one != next_ for one, next_ in itertools.pairwise(waits))


def test_an_answer_belongs_to_the_newest_wish(start: Start) -> None:
    session = start("a", ALONE)
    session.ask("", "first")
    until_heard(session, lambda: session.wish == "first" and session.ready)
    session.ask("", "second")
    until_heard(session, lambda: session.wish == "second" and session.ready)
    assert session.ready is not None
    assert session.ready.record.number == 2


def test_what_comes_within_an_operation_is_heard_before_the_next_one(
    start: Start, store: OddStore
) -> None:
    """A leader that is busy must not count on a node though it could know that this is gone."""
    started = threading.Event()
    heard: list[int] = []

    def during() -> None:
        assert started.wait(SOON)
        session.ask("", "first")
        session.request(NodeTick(), lambda: heard.append(len(store.asked)))

    store.during = during
    session = start("a", ALONE)
    started.set()
    until_heard(session, lambda: session.ready)
    assert heard == [1]


def test_waiting_ends_at_the_deadline(start: Start) -> None:
    session = start("a", TWO)
    assert not session.wait(lambda: False, Deadline.after(0.01))


def test_each_kind_of_operation_has_its_own_limit(start: Start, store: OddStore) -> None:
    rules = Rules(min_nodes=1, max_nodes=1, keep_alive_s=0.01, lease_s=10)
    session = start("a", rules, heartbeat_s=3.0)
    session.ask("", "first")
    until_heard(session, lambda: session.ready)
    assert store.kept.wait(SOON)
    session.stop()
    limits = {name: round(limit or 0) for name, limit in store.asked}
    assert limits["LeaseKeep"] == 3
    assert limits["LeaseGrant"] == 10  # a lease: a node that is silent for longer is lost


def test_no_operation_outlasts_the_join_timeout(start: Start, store: OddStore) -> None:
    store.failing, store.failure = LeaseGrant, TimeoutExpired("too slow")
    session = start("a", Rules(min_nodes=1, max_nodes=1, join_s=0.5))
    session.ask("", "first")
    until_heard(session, lambda: session.timed_out)
    session.stop()
    assert all(limit is not None and limit <= 0.5 for _, limit in store.asked[1:])


def test_a_store_that_fails_for_longer_than_a_lease_is_lost(start: Start, store: OddStore) -> None:
    rules = Rules(min_nodes=1, max_nodes=1, keep_alive_s=0.02, lease_s=0.2)
    sink = MemorySink()
    session = start("a", rules, sink=sink)
    session.ask("", "first")
    until_heard(session, lambda: session.ready)
    store.failing, store.failure = LeaseKeep, TimeoutExpired("too slow")
    until_heard(session, lambda: session.lost)
    assert session.lost is not None
    assert session.lost.reason == "the store cannot be used: too slow"
    session.stop()
    assert str(sink.events[-1]) == "run job: the store cannot be used: too slow"


def test_a_node_that_leaves_a_full_store_ends_its_lease(start: Start, store: OddStore) -> None:
    """It cannot say that it leaves, and the others need not wait until its lease ends."""
    session = start("a", ALONE)
    session.ask("", "first")
    until_heard(session, lambda: session.ready)
    store.failing, store.failure = CompareSet, StoreFull("no space")
    session.request(FinishRound())
    until_heard(session, lambda: session.lost)
    assert session.lost is not None
    assert session.lost.reason == "the store cannot be used: no space"
    assert session.stop()
    assert store.count(Keys(RUN).nodes) == 1
    session.release(Deadline.after(SOON))
    assert store.count(Keys(RUN).nodes) == 0
    session.release(Deadline.after(SOON))  # it is gone, and that is no error


def test_a_node_that_leaves_a_silent_store_does_not_ask_it_to_end_the_lease(
    start: Start, store: OddStore
) -> None:
    session = start("a", Rules(min_nodes=1, max_nodes=1, keep_alive_s=0.02, lease_s=0.2))
    session.ask("", "first")
    until_heard(session, lambda: session.ready)
    store.failing, store.failure = LeaseKeep, StoreUnavailable("nobody there")
    until_heard(session, lambda: session.lost)
    assert session.stop()
    session.release(Deadline.after(SOON))
    assert "LeaseRevoke" not in [name for name, _ in store.asked]


def test_a_store_that_cannot_be_watched_is_lost(start: Start, store: OddStore) -> None:
    store.no_watch = StoreUnavailable("no connection")
    session = start("a", ALONE)
    until_heard(session, lambda: session.lost)
    assert session.lost is not None
    assert session.lost.reason == "the store cannot be watched: no connection"


def test_a_watch_that_breaks_is_a_lost_store(start: Start, store: OddStore) -> None:
    class Broken(Watch):
        def _next(self, deadline: Deadline):  # type: ignore[no-untyped-def]
            raise StoreUnavailable("no connection for 10 s")

        def close(self) -> None:
            pass

    store._open_watch = lambda key, prefix, deadline: Broken()  # type: ignore[method-assign]
    session = start("a", ALONE)
    until_heard(session, lambda: session.lost)
    assert session.lost is not None
    assert session.lost.reason == "the store cannot be watched: no connection for 10 s"


def test_a_watch_with_a_bug_is_told(
    start: Start, store: OddStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Watch):
        def _next(self, deadline: Deadline):  # type: ignore[no-untyped-def]
            raise ZeroDivisionError("x")

        def close(self) -> None:
            pass

    store._open_watch = lambda key, prefix, deadline: Broken()  # type: ignore[method-assign]
    session = start("a", ALONE)
    until_heard(session, lambda: session.lost)
    assert session.lost is not None
    assert session.lost.reason == "a bug in holdfast: ZeroDivisionError('x')"


def test_a_closed_store_is_lost(start: Start, store: OddStore) -> None:
    session = start("a", ALONE)
    store.close()
    session.ask("", "first")
    until_heard(session, lambda: session.lost)
    assert session.lost is not None
    assert session.lost.reason.endswith("the store memory:// is closed")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ZeroDivisionError("x"), "a bug in holdfast: ZeroDivisionError('x')"),
        (None, "the rank poli"),
    ],
)
def test_a_rank_policy_that_fails_is_told(
    start: Start, error: Exception | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    def policy(chosen: object, previous: object) -> list[Announcement]:
        if error is not None:
            raise error
        return []

    session = start("a", ALONE, rank=policy)
    session.ask("", "first")
    until_heard(session, lambda: session.lost)
    assert session.lost is not None
    assert session.lost.reason.startswith(told)


def test_leaving_is_told(start: Start, store: OddStore) -> None:
    session = start("a", ALONE)
    session.ask("", "first")
    until_heard(session, lambda: session.ready)
    session.request(LeaveRun())
    until_heard(session, lambda: session.left)
    assert store.count(Keys(RUN).nodes) == 0
