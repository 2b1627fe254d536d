"""An agent at work: real rendezvous, real threads, played workers."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from logging.handlers import QueueHandler
from signal import SIGTERM
from typing import Any

import pytest

from holdfast.agent import agent
from holdfast.agent import status as status_module
from holdfast.agent.exchange import meet_at_exit
from holdfast.agent.machine import State, Terms
from holdfast.agent.outcome import Ending
from holdfast.agent.policy import RestartBudget
from holdfast.agent.roles import NodeInfo
from holdfast.clock import Deadline
from holdfast.errors import InternalError, UsageError, WorkersStuck
from holdfast.observe.events import JobEnded, JobFailed, WorkersRestarting, WorkersStarted
from holdfast.rendezvous.decide import Rules
from holdfast.rendezvous.handler import Rendezvous, Round, StoreRendezvous
from holdfast.rendezvous.model import Keys
from tests.unit.agent.troupe import RUN, SOON_S, PlayedAgent, PlayedGroup, Troupe, a_job

ONE = Rules(min_nodes=1, max_nodes=1, join_s=60.0, last_call_s=0.0)
TWO = Rules(min_nodes=2, max_nodes=2, join_s=60.0, last_call_s=0.0)
ANY = Rules(min_nodes=1, max_nodes=2, join_s=60.0, last_call_s=0.0)


@pytest.fixture
def troupe() -> Iterator[Troupe]:
    troupe = Troupe()
    yield troupe
    troupe.close()


def group_of_world(one: PlayedAgent, size: int) -> PlayedGroup:
    """Wait for the workers of a round of this size."""
    while (group := one.next_group()).launches[0].environment["WORLD_SIZE"] != str(size):
        pass
    return group


def environment(group: PlayedGroup) -> list[dict[str, str]]:
    return [dict(launch.environment) for launch in group.launches]


def test_a_node_alone_runs_its_workers_and_succeeds(troupe: Troupe) -> None:
    one = troupe.add("a", ONE)
    group = one.next_group()
    assert [launch.rank for launch in group.launches] == [0, 1]
    assert environment(group)[1]["HOME"] == "/home/me"
    group.done()
    end = one.ended()
    assert (end.ending, end.results) == (Ending.SUCCEEDED, {})
    assert group.closed
    assert one.agent.pids() == {}
    status = one.agent.status()
    assert (status.state, status.ending) == (State.ENDED, Ending.SUCCEEDED)
    shown = [one.shown.get(timeout=SOON_S).state for _ in range(4)]
    assert shown == [State.JOINING, State.RUNNING, State.FINISHED, State.ENDED]
    kinds = [type(event) for event in one.sink.events]
    assert kinds[0] is WorkersStarted
    assert kinds[-1] is JobEnded


def test_its_state_can_be_seen_while_it_works(troupe: Troupe) -> None:
    one = troupe.add("a", ONE)
    group = one.next_group()
    while one.shown.get(timeout=SOON_S).state is not State.RUNNING:
        pass
    assert one.agent.pids() == {0: 1000, 1: 1001}
    status = one.agent.status()
    assert status.place is not None
    assert (status.place.round, status.place.nodes) == (1, 1)
    assert status.membership is not None
    group.done()
    one.ended()


def test_a_waiting_agent_says_for_how_many_nodes(
    troupe: Troupe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "COUNT_EVERY_S", 0.01)
    monkeypatch.setattr(status_module, "EXPLAIN_AFTER_S", 0.01)
    a = troupe.add("a", TWO)
    while (status := a.shown.get(timeout=SOON_S)).waiting != "have 1 of 2: waiting for 1 more":
        assert status.state is State.JOINING
    b = troupe.add("b", TWO)
    a.next_group()
    b.next_group()
    while (status := a.shown.get(timeout=SOON_S)).state is not State.RUNNING:
        pass
    assert status.reason == "node 0 of 2 in round 1"
    b.agent._signalled(SIGTERM)
    while not (status := a.shown.get(timeout=SOON_S)).waiting.startswith("have 1 of 2: "):
        pass
    assert status.state is State.JOINING
    assert status.reason == "round 1 is over: b is gone"
    assert str(status.restarts) == "no restart"


def test_a_failure_restarts_the_workers_of_all_nodes_in_one_new_round(troupe: Troupe) -> None:
    a = troupe.add("a", TWO)
    b = troupe.add("b", TWO, a_job(node=NodeInfo("trainer", 1)))
    first, other = a.next_group(), b.next_group()
    assert {one["WORLD_SIZE"] for one in environment(first) + environment(other)} == {"3"}
    first.fail(1)
    again, also = a.next_group(), b.next_group()
    assert {one["TORCHELASTIC_RESTART_COUNT"] for one in environment(again)} == {"1"}
    assert other.stops == [(SIGTERM, 5.0)]
    again.done()
    also.done()
    assert a.ended().ending is b.ended().ending is Ending.SUCCEEDED
    told = [str(one.agent.status().restarts) for one in (a, b)]
    assert told == 2 * ["1 restart (rank 1: exit code 3)"]
    (restarting,) = [one for one in b.sink.events if isinstance(one, WorkersRestarting)]
    assert "failed (exit code 3): boom" in restarting.reason
    rounds = {one.round for one in a.sink.events if isinstance(one, WorkersStarted)}
    assert rounds == {1, 2}


def test_when_no_restart_is_left_every_node_names_the_first_cause(troupe: Troupe) -> None:
    job = a_job(terms=Terms(budget=RestartBudget(0)))
    a, b = troupe.add("a", TWO, job), troupe.add("b", TWO, job)
    groups = [a.next_group(), b.next_group()]
    cause = groups[1].fail(0, "the first cause")
    for one in (a, b):
        end = one.ended()
        assert end.ending is Ending.FAILED
        assert [(x.rank, x.message) for x in end.failures] == [(cause.rank, "the first cause")]
        assert "giving up" in end.reason
        assert isinstance(one.sink.events[-1], JobFailed)


def test_a_signal_makes_one_node_leave_and_the_others_go_on(troupe: Troupe) -> None:
    a, b = troupe.add("a", ANY), troupe.add("b", ANY)
    last = group_of_world(b, 4)
    group_of_world(a, 4)
    b.agent._signalled(SIGTERM)
    end = b.ended()
    assert (end.ending, end.signal) == (Ending.SIGNALLED, 15)
    assert last.stops == [(SIGTERM, 5.0)]
    group_of_world(a, 2).done()
    assert a.ended().ending is Ending.SUCCEEDED


def test_a_newcomer_is_let_in(troupe: Troupe) -> None:
    a = troupe.add("a", ANY)
    alone = a.next_group()
    b = troupe.add("b", ANY)
    both = [a.next_group(), b.next_group()]
    assert alone.stops
    assert environment(both[0])[0]["WORLD_SIZE"] == "4"
    assert environment(both[0])[0]["TORCHELASTIC_RESTART_COUNT"] == "0"  # no worker failed
    for group in both:
        group.done()
    assert a.ended().ending is b.ended().ending is Ending.SUCCEEDED


def test_workers_that_cannot_be_started_end_the_run_for_all(troupe: Troupe) -> None:
    def refuse(group: PlayedGroup) -> None:
        group.cannot_start = UsageError("no such file: train.py")

    a, b = troupe.add("a", TWO, prepare=refuse), troupe.add("b", TWO)
    end = a.ended()
    assert end.ending is Ending.BROKEN
    assert isinstance(end.error, UsageError)
    end = b.ended()
    assert (end.ending, end.failures) == (Ending.FAILED, ())
    assert "a node could not start its workers: no such file: train.py" in end.reason


def test_a_worker_that_cannot_be_killed_ends_the_agent(troupe: Troupe) -> None:
    def cannot_die(group: PlayedGroup) -> None:
        group.stuck = (1001,)

    one = troupe.add("a", ONE, prepare=cannot_die)
    one.next_group().fail(0)
    end = one.ended()
    assert isinstance(end.error, WorkersStuck)
    assert end.error.pids == (1001,)


@pytest.mark.parametrize("error", [ValueError("odd"), UsageError("wrong")])
def test_a_barrier_that_fails_is_no_failure(troupe: Troupe, error: Exception) -> None:
    def barrier(here: Round, stopped: Callable[[], bool], deadline: Deadline) -> None:
        raise error

    one = troupe.add("a", ONE, exit_barrier=barrier)
    one.next_group().done()
    end = one.ended()
    assert (end.ending, end.reason) == (Ending.SUCCEEDED, f"finished; the exit barrier: {error}")


def test_a_node_that_is_done_works_again_after_a_failure_elsewhere(troupe: Troupe) -> None:
    waits = threading.Event()

    def barrier(here: Round, stopped: Callable[[], bool], deadline: Deadline) -> None:
        waits.set()
        meet_at_exit(here, stopped, deadline)

    a, b = troupe.add("a", TWO, exit_barrier=barrier), troupe.add("b", TWO)
    a.next_group().done()
    assert waits.wait(SOON_S)
    b.next_group().fail(0)
    for one in (a, b):
        one.next_group().done()
    assert a.ended().ending is b.ended().ending is Ending.SUCCEEDED


def test_a_node_that_is_done_and_told_to_stop_keeps_no_node_waiting(troupe: Troupe) -> None:
    waits, let_go = threading.Event(), threading.Event()

    def barrier(here: Round, stopped: Callable[[], bool], deadline: Deadline) -> None:
        waits.set()
        let_go.wait(SOON_S)

    a, b = troupe.add("a", TWO, exit_barrier=barrier), troupe.add("b", TWO)
    a.next_group().done()
    assert waits.wait(SOON_S)
    a.agent._signalled(SIGTERM)
    assert a.ended().ending is Ending.SIGNALLED
    let_go.set()
    b.next_group().done()
    assert b.ended().reason == "all workers are done"


@pytest.fixture
def logged() -> Iterator[queue.SimpleQueue[logging.LogRecord]]:
    """What agents log, as it comes."""
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = QueueHandler(records)
    logger = logging.getLogger("holdfast.agent")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def test_an_odd_report_of_a_peer_is_told_and_ignored(
    troupe: Troupe, logged: queue.SimpleQueue[logging.LogRecord]
) -> None:
    a, b = troupe.add("a", TWO), troupe.add("b", TWO)
    groups = [a.next_group(), b.next_group()]
    board = Keys(RUN).board
    for rank in range(2):
        troupe.store.set(f"{board}1/failed/{rank}", b"garbage")
    for _ in range(2):
        assert "run job: node " in logged.get(timeout=SOON_S).getMessage()
    for group in groups:
        group.done()
    assert a.ended().ending is b.ended().ending is Ending.SUCCEEDED


def test_a_bug_in_a_wait_does_not_leave_the_loop_waiting(
    troupe: Troupe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def next_round(self: object, why: str = "") -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(StoreRendezvous, "next_round", next_round)
    end = troupe.add("a", ONE).ended()
    assert isinstance(end.error, InternalError)
    assert "a bug in holdfast: RuntimeError('a bug')" in end.reason


def test_a_bug_in_a_task_does_not_leave_the_loop_waiting(
    troupe: Troupe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def count_failure(self: object, *, timeout: float | None = None) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(StoreRendezvous, "count_failure", count_failure)
    a = troupe.add("a", ONE)
    a.next_group().fail(0)
    end = a.ended()
    assert isinstance(end.error, InternalError)
    assert "a bug in holdfast: RuntimeError('a bug')" in end.reason


def test_a_rendezvous_that_does_not_speak_up_is_asked(
    troupe: Troupe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third-party backend: it has no subscription, and no finish."""
    monkeypatch.setattr(StoreRendezvous, "subscribe", Rendezvous.subscribe)
    monkeypatch.setattr(StoreRendezvous, "finish", Rendezvous.finish)
    a, b = troupe.add("a", TWO), troupe.add("b", TWO)
    groups = [a.next_group(), b.next_group()]
    groups[0].fail(0)
    for one in (a, b):
        one.next_group().done()
    assert a.ended().ending is b.ended().ending is Ending.SUCCEEDED


def test_a_run_that_closes_while_we_look_is_no_round_that_ends(
    troupe: Troupe, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = StoreRendezvous.over
    all_done, let_go = threading.Event(), threading.Event()

    def closed_just_now(self: StoreRendezvous) -> str | None:
        if all_done.is_set() and self.closed() is None:
            self.close("all are done")
        return look(self)

    def wait(here: Round, stopped: Callable[[], bool], deadline: Deadline) -> None:
        all_done.set()
        let_go.wait(SOON_S)

    monkeypatch.setattr(StoreRendezvous, "over", closed_just_now)
    one = troupe.add("a", ONE, exit_barrier=wait)
    one.next_group().done()
    assert all_done.wait(SOON_S)
    one.agent._post(lambda: None)
    try:
        assert one.ended().ending is Ending.SUCCEEDED
    finally:
        let_go.set()


def test_a_store_that_takes_no_words_is_told_of_and_does_not_stop_it(
    troupe: Troupe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise UsageError("not today")

    monkeypatch.setattr("holdfast.agent.run_writer.publish", refuse)
    monkeypatch.setattr(StoreRendezvous, "close", refuse)
    a, b = troupe.add("a", TWO), troupe.add("b", TWO)
    a.next_group()
    b.next_group().fail(0)
    for one in (a, b):
        one.next_group().done()
    assert a.ended().ending is b.ended().ending is Ending.SUCCEEDED
    assert "a failure could not be reported: not today" in caplog.text
    assert "it could not be closed: not today" in caplog.text


def test_a_failure_that_cannot_be_counted_ends_the_agent(
    troupe: Troupe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, *, timeout: float | None = None) -> Any:
        raise UsageError("cannot count")

    monkeypatch.setattr(StoreRendezvous, "count_failure", refuse)
    one = troupe.add("a", ONE)
    one.next_group().fail(0)
    end = one.ended()
    assert (end.ending, str(end.error)) == (Ending.BROKEN, "cannot count")
