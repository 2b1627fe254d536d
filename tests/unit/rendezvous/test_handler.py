"""The rendezvous as its users see it, over memory and over a server."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import (
    Fenced,
    RendezvousClosed,
    RendezvousLost,
    RendezvousTimedOut,
    RunOver,
    UsageError,
)
from holdfast.ids import NodeId, RunId
from holdfast.net.address import Address
from holdfast.net.secret import new_secret
from holdfast.observe.events import RoundAwaited
from holdfast.observe.sinks import MemorySink
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.effects import Counted
from holdfast.rendezvous.handler import Round, RunEnd, StoreRendezvous
from holdfast.rendezvous.inputs import ReportFailure
from holdfast.rendezvous.model import Announcement, Failures, Keys, Phase
from holdfast.store import client
from holdfast.store.memory import MemoryStore
from holdfast.store.open import open_store, serve_store
from holdfast.store.server import StoreServer
from holdfast.store.store import Store
from tests.waiting import with_more_time

RUN = RunId("job")
TWO = Rules(min_nodes=2, max_nodes=2, join_s=60, last_call_s=0)
SOON = 20.0


class Party:
    """Nodes of one run over one store, or each with a client of one server."""

    def __init__(self, kind: str) -> None:
        self.server: StoreServer | None = None
        self.shared: Store | None = None
        self.secret = new_secret()
        if kind == "tcp":
            self.server = serve_store(secret=self.secret)
        else:
            self.shared = MemoryStore()
        self.nodes: list[StoreRendezvous] = []

    def open(self) -> Store:
        if self.shared is not None:
            return self.shared
        assert self.server is not None
        return open_store(self.server.endpoint, secret=self.secret)

    def add(self, name: str, rules: Rules = TWO, **more: Any) -> StoreRendezvous:
        store = self.open()

        def release(keys: Keys, deadline: Deadline) -> bool:
            if store is not self.shared:
                store.close()
            return True

        me = Announcement(
            NodeId(name), f"host-{name}", "127.0.0.1", 4000, Phase.WAITING, 0, None, ""
        )
        given: dict[str, Any] = {"release": release, "sink": MemorySink(), "close_s": 10.0}
        node = StoreRendezvous("test", RUN, me, rules, store, **given | more)
        node.start()
        self.nodes.append(node)
        return node

    def wait_until_nobody_asks(self) -> None:
        store, nodes = self.open(), Keys(RUN).nodes
        with store.watch(nodes, prefix=True) as watch:
            while store.count(nodes):
                watch.next(SOON)
        if store is not self.shared:
            store.close()

    def close(self) -> None:
        for node in self.nodes:
            node.shutdown()
        if self.server is not None:
            self.server.close()
        if self.shared is not None:
            self.shared.close()


@pytest.fixture(params=["memory", "tcp"])
def party(request: pytest.FixtureRequest) -> Iterator[Party]:
    party = Party(request.param)
    yield party
    party.close()


@pytest.fixture
def memory() -> Iterator[Party]:
    party = Party("memory")
    yield party
    party.close()


@pytest.fixture
def tcp() -> Iterator[Party]:
    party = Party("tcp")
    yield party
    party.close()


def together(*nodes: StoreRendezvous, why: str = "") -> list[Round]:
    """Let nodes ask at the same time; return their rounds."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(lambda node: node.next_round(why, timeout=SOON), nodes))


def until_heard(node: StoreRendezvous, done: Callable[[], object]) -> None:
    assert node._session.wait(lambda: bool(done()), Deadline.after(SOON))


def test_two_nodes_meet_and_share_a_store(party: Party) -> None:
    a, b = party.add("a"), party.add("b")
    one, two = together(a, b)
    assert (one.rank, two.rank) == (0, 1)
    assert one.number == two.number == 1
    assert one.world_size == two.world_size == 2
    assert list(one.members) == list(two.members)
    assert one.reason == "round 1 is complete with 2: all places are taken"
    assert (two.master_address, two.master_port) == ("127.0.0.1", 4000)
    one.store.set("k", b"v")
    assert two.store.get("k") == b"v"
    assert (a.over(), a.closed(), a.nodes_waiting()) == (None, None, 0)


def test_the_master_can_be_given(memory: Party) -> None:
    a, b = (memory.add(name, master=Address("gpu-7", 29500)) for name in "ab")
    for here in together(a, b):
        assert (here.master_address, here.master_port) == ("gpu-7", 29500)


def test_rounds_follow_each_other_and_old_ones_are_fenced(party: Party) -> None:
    a, b = party.add("a"), party.add("b")
    old, _ = together(a, b)
    old.store.set("k", b"1")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(b.next_round, "a worker failed", timeout=SOON)
        until_heard(a, a.over)
        assert a.over() == "round 1 is over: host-b: a worker failed"
        assert a.nodes_waiting() == 1  # a signal for callers that ask only for this number
        new = a.next_round(timeout=SOON)
        assert asked.result().number == new.number == 2
    assert a.over() is None
    with pytest.raises(Fenced):
        old.store.set("k", b"2")
    assert new.store.get("k") is None  # every round has a store of its own
    new.store.set("k", b"3")


def test_spares_are_counted_while_they_could_come_in(party: Party) -> None:
    rules = Rules(min_nodes=2, max_nodes=3, last_call_s=0)
    a, b = party.add("a", rules), party.add("b", rules)
    together(a, b)
    c = party.add("c", rules)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(c.next_round, timeout=SOON)
        until_heard(a, a.nodes_waiting)
        assert a.nodes_waiting() == 1
        rounds = together(a, b, why="to let it in")
        assert waiting.result().world_size == rounds[0].world_size == 3
    assert [here.rank for here in rounds] == [0, 1]  # a node that stays keeps its rank


def test_a_listener_hears_of_whatever_a_node_may_ask_for(party: Party) -> None:
    rules = Rules(min_nodes=2, max_nodes=3, last_call_s=0)
    a, b = party.add("a", rules), party.add("b", rules)
    heard = threading.Event()
    a.subscribe(heard.set)
    together(a, b)

    def hear(done: Callable[[], object]) -> None:
        while not done():
            assert heard.wait(SOON)
            heard.clear()

    with ThreadPoolExecutor(1) as pool:
        spare = party.add("c", rules)
        waiting = pool.submit(spare.next_round)
        hear(a.nodes_waiting)
        b.shutdown()
        hear(a.over)
        spare.close("enough")
        hear(a.closed)
        with pytest.raises(RendezvousClosed):
            waiting.result(SOON)


def test_a_listener_that_fails_harms_no_other_listener(
    memory: Party, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = memory.add("a"), memory.add("b")
    heard = threading.Event()
    a.subscribe(lambda: next(iter(())))
    a.subscribe(heard.set)
    together(a, b)
    assert heard.wait(SOON)
    assert "a listener of the rendezvous failed" in caplog.text
    assert a.over() is None


def test_a_failure_counts_once_for_all_nodes(party: Party) -> None:
    a, b = party.add("a"), party.add("b")
    together(a, b)
    with ThreadPoolExecutor(2) as pool:
        counted = list(pool.map(lambda node: node.count_failure(timeout=SOON), [a, b] * 3))
    assert [failures.count for failures in counted] == [1] * 6
    assert len({failures.times for failures in counted}) == 1
    together(a, b)
    before = SYSTEM_CLOCK.wall()
    second = b.count_failure()
    assert (second.count, len(second.times)) == (2, 2)
    assert before - 1.0 < second.times[-1] < SYSTEM_CLOCK.wall() + 1.0
    assert a.count_failure() == second
    assert party.add("c").count_failure() == second  # not in a round: it only learns of them


def test_the_answer_to_an_earlier_report_is_not_taken_for_this_one(
    memory: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ND-4: such as one of an earlier round that took too long."""
    a, b = memory.add("a"), memory.add("b")
    together(a, b)
    real, real_ended = a._node.count_failure, a._ended
    stale = Counted(0, Failures())

    def count(now: float, wall: float) -> None:
        a._session._tell(stale)

    def ended() -> bool:
        """Is asked when an answer has come that is not the one."""
        if a._session.counted is stale:
            monkeypatch.setattr(a._node, "count_failure", real)
            a._session.request(ReportFailure(5.0))
        return real_ended()

    monkeypatch.setattr(a._node, "count_failure", count)
    monkeypatch.setattr(a, "_ended", ended)
    assert a.count_failure(timeout=SOON).count == 1


def test_members_of_a_round_agree_on_the_failures_before_it(party: Party) -> None:
    """RV-7."""
    a, b = party.add("a"), party.add("b")
    assert [here.failures for here in together(a, b)] == [0, 0]
    a.count_failure()
    assert [here.failures for here in together(a, b)] == [1, 1]
    b.count_failure()
    assert a.shutdown()
    assert [here.failures for here in together(b, party.add("newcomer"))] == [2, 2]


def test_closing_ends_the_run_for_everyone(party: Party) -> None:
    a, b = party.add("a"), party.add("b")
    together(a, b)
    a.close("the job is done")
    until_heard(b, b.closed)
    assert b.closed() == b.over() == "the job is done"
    assert b.ended() == RunEnd("the job is done", failed=False)
    for node in (a, b):
        with pytest.raises(RendezvousClosed, match="^run job is closed: the job is done$"):
            node.next_round(timeout=SOON)
    told = r"^run 'job' ended at 20\d\d-.* UTC \(the job is done\).*another id \(--rdzv-id\)"
    with pytest.raises(RunOver, match=told):
        party.add("late").next_round(timeout=SOON)
    b.close("again")  # is closed: nothing to do
    assert a.closed() == "the job is done"


def test_a_run_can_be_closed_as_failed(party: Party) -> None:
    a, b = party.add("a"), party.add("b")
    together(a, b)
    assert a.ended() is None
    a.close("too many failures", failed=True)
    until_heard(b, b.closed)
    assert b.ended() == RunEnd("too many failures", failed=True)
    for node in (a, b, party.add("late")):
        with pytest.raises(RendezvousClosed) as caught:
            node.next_round(timeout=SOON)
        assert caught.value.failed
    b.close("all is well")  # is closed: what was said first stands
    assert b.ended() == a.ended() == RunEnd("too many failures", failed=True)


def test_leaving_does_not_close(party: Party) -> None:
    """RV-4."""
    a, b = party.add("a"), party.add("b")
    together(a, b)
    assert b.shutdown()
    until_heard(a, a.over)
    assert a.over() == "round 1 is over: host-b is gone"
    assert a.closed() is None
    rounds = together(a, party.add("c"))
    assert [here.rank for here in rounds] == [0, 1]


def test_a_finished_node_leaves_and_the_round_goes_on(party: Party) -> None:
    """RV-8, RV-9."""
    rules = Rules(min_nodes=3, max_nodes=4, last_call_s=0)
    a, b, c = (party.add(name, rules) for name in "abc")
    together(a, b, c)
    b.finish()
    assert b.shutdown()
    with ThreadPoolExecutor(1) as pool:
        spare = party.add("spare", rules)
        waiting = pool.submit(spare.next_round, timeout=SOON)
        until_heard(
            a, lambda: (seen := a.progress()) and seen.reason.endswith("1 finished; 1 waiting")
        )
        assert (a.over(), c.over(), a.nodes_waiting()) == (None, None, 0)
        rounds = together(a, c, why="a worker failed")  # b has left: it is not waited for
        assert rounds[0].world_size == waiting.result().world_size == 3


def test_leaving_twice_and_from_two_threads(memory: Party) -> None:
    released: list[Keys] = []

    def release(keys: Keys, deadline: Deadline) -> bool:
        released.append(keys)
        return True

    a = memory.add("a", release=release)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: a.shutdown(), range(4))) == [True] * 4
    assert a.shutdown()
    assert len(released) == 1


def test_leaving_inside_of_leaving_returns(memory: Party) -> None:
    """As a signal handler does that interrupts a shutdown."""
    inner: list[bool] = []

    def release(keys: Keys, deadline: Deadline) -> bool:
        inner.append(a.shutdown())
        return True

    a = memory.add("a", release=release)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(a.shutdown).result(SOON)
    assert inner == [False]
    assert a.shutdown()


def test_a_later_wish_takes_over(memory: Party) -> None:
    a = memory.add("a")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(a.next_round)
        until_heard(a, a.progress)
        second = pool.submit(a.next_round)
        with pytest.raises(UsageError, match=r"^run job: another next_round\(\) took over$"):
            first.result(SOON)
        assert memory.add("b").next_round(timeout=SOON).world_size == 2
        assert second.result(SOON).world_size == 2


def test_leaving_that_is_interrupted_leaves_nothing_behind(
    memory: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[Deadline] = []

    def release(keys: Keys, deadline: Deadline) -> bool:
        released.append(deadline)
        return True

    def interrupt(*args: object) -> bool:
        raise KeyboardInterrupt

    a = memory.add("a", release=release)
    monkeypatch.setattr(a._session, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        a.shutdown()
    assert [deadline.passed() for deadline in released] == [True]  # no node is waited for
    assert not a.shutdown()
    assert len(released) == 1


def test_leaving_by_with(memory: Party) -> None:
    alone = Rules(min_nodes=1, max_nodes=1)
    with memory.add("a", alone) as node:
        assert node.next_round(timeout=SOON).world_size == 1
        assert (node.backend, node.run_id, node.endpoint) == ("test", "job", "memory://")
    store = memory.shared
    assert store is not None
    assert store.count("rdzv/job/node/") == 0


def test_a_release_that_was_late_is_said(memory: Party) -> None:
    assert not memory.add("a", release=lambda keys, deadline: False).shutdown()


def test_after_leaving_nothing_can_be_asked(memory: Party) -> None:
    a = memory.add("a")
    a.shutdown()
    for use in (a.next_round, a.count_failure, a.finish, a.close):
        with pytest.raises(UsageError, match="^run job: this node has left it$"):
            use()


def test_leaving_ends_a_wait_in_another_thread(memory: Party) -> None:
    a = memory.add("a")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(a.next_round)
        until_heard(a, a.progress)
        a.shutdown()
        with pytest.raises(UsageError, match="^run job: this node has left it$"):
            waiting.result(SOON)


@pytest.mark.parametrize("use", ["why", "reason"])
def test_reasons_are_text(memory: Party, use: str) -> None:
    a = memory.add("a")
    wrong: Any = b"because"
    with pytest.raises(UsageError, match=f"^{use} b'because': must be a str, not bytes$"):
        a.next_round(wrong) if use == "why" else a.close(wrong)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon", True])
def test_odd_timeouts_are_refused(memory: Party, timeout: Any) -> None:
    a = memory.add("a")
    for use in (a.next_round, a.count_failure):
        with pytest.raises(UsageError, match="^timeout "):
            use(timeout=timeout)


def test_no_round_in_time_names_the_nodes_that_are_there(party: Party) -> None:
    def wait_in_vain(seconds: float) -> None:
        party.wait_until_nobody_asks()
        a = party.add(f"a-{seconds:g}", Rules(min_nodes=8, max_nodes=8, join_s=seconds))
        for _ in range(2):  # and again, from the beginning
            with pytest.raises(RendezvousTimedOut) as caught:
                a.next_round()
            said = f"run job: no round within {seconds:g} s: have 1 of 8: waiting for 7 more"
            assert str(caught.value) == said

    with_more_time(wait_in_vain)


def test_the_callers_own_timeout_takes_the_wish_back(party: Party) -> None:
    a, b = party.add("a"), party.add("b")
    for node in (a, b):

        def wait_in_vain(seconds: float, node: StoreRendezvous = node) -> None:
            party.wait_until_nobody_asks()
            with pytest.raises(RendezvousTimedOut) as caught:
                node.next_round(timeout=seconds)
            # Not two of them: a node that does not wait any more does not count.
            said = f"run job: no round within {seconds:g} s: have 1 of 2: waiting for 1 more"
            assert str(caught.value) == said

        with_more_time(wait_in_vain)
    party.wait_until_nobody_asks()
    together(a, b)


def test_a_round_that_comes_too_late_for_its_caller_is_left(memory: Party) -> None:
    """A node that was told "no round" must not be counted on as a member of one."""
    alone = Rules(min_nodes=1, max_nodes=1)
    a = memory.add("a", alone)
    with pytest.raises(RendezvousTimedOut):
        a.next_round(timeout=0)  # the round comes all the same, a moment later
    memory.wait_until_nobody_asks()
    assert a.next_round(timeout=SOON).number >= 1


def test_no_time_for_a_failure_or_an_end(memory: Party) -> None:
    a = memory.add("a", close_s=0.0)
    with pytest.raises(RendezvousTimedOut, match="the failure could not be counted in time$"):
        a.count_failure(timeout=0)
    with pytest.raises(RendezvousTimedOut, match="it could not be closed in time$"):
        a.close()


def test_a_lost_store_ends_every_call_with_the_reason(
    tcp: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RECONNECT_WITHIN_S", 0.3)
    a, b, spare = (tcp.add(name) for name in "abs")
    together(a, b)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(spare.next_round)
        until_heard(spare, spare.progress)
        assert tcp.server is not None
        began = SYSTEM_CLOCK.monotonic()
        tcp.server.close()
        with pytest.raises(RendezvousLost, match="is lost: no connection"):
            waiting.result(SOON)
        until_heard(a, a.over)
        assert SYSTEM_CLOCK.monotonic() - began < SOON
    assert "is lost" in (a.over() or "")
    for use in (a.next_round, a.count_failure, a.close):
        with pytest.raises(RendezvousLost, match="is lost: no connection"):
            use()
    assert all(node.shutdown() for node in (a, b, spare))


def test_waiting_is_explained_to_people_when_it_changes(memory: Party) -> None:
    sink = MemorySink()
    rules = Rules(min_nodes=3, max_nodes=3)
    a = memory.add("a", rules, sink=sink)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(a.next_round, timeout=SOON)
        until_heard(a, lambda: (seen := a.progress()) and seen.have == 1)
        together(*(memory.add(name, rules) for name in "bc"))
        assert first.result().rank == 0
    reasons = [event.reason for event in sink.events if isinstance(event, RoundAwaited)]
    assert "have 1 of 3: waiting for 2 more" in reasons
    assert all(one != two for one, two in itertools.pairwise(reasons))


def test_no_threads_are_left(party: Party) -> None:
    before = threading.active_count()
    nodes = [party.add(name) for name in "ab"]
    together(*nodes)
    assert all(node.shutdown() for node in nodes)
    assert threading.active_count() == before
