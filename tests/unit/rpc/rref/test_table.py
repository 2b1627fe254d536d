"""The shell around the counting of references: values, messages, and trying again."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from holdfast.clock import Deadline
from holdfast.errors import CallTimedOut, PeerLost, ReferenceFailed, UsageError
from holdfast.rpc.client.future import Future
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.rref import table as module
from holdfast.rpc.rref.rref import CallingAgent, RRef, make_rref
from holdfast.rpc.rref.table import RRefTable
from holdfast.rpc.values.references import here
from holdfast.rpc.wire.messages import Kind, Message
from holdfast.rpc.wire.tickets import Number, Ticket
from holdfast.rpc.wire.worker_info import WorkerInfo

WITHIN_S = 20.0
ME, OWNER, OTHER = "me", "owner", "other"
OWNER_INFO = WorkerInfo("owner", 7)
FAST = RetryPolicy(max_retries=2, delay_s=0.001, backoff=1.0)


class Agent:
    """Stands for the agent: it answers as it is told, or fails."""

    timeout_s = 0.05

    def __init__(self) -> None:
        self.sent: list[tuple[str, Kind]] = []
        self.values: list[Any] = []
        self.failures = 0
        self.answer: Any = True
        self.known = True

    def request(
        self, to: str, kind: Kind, value: Any, timeout: float | None, retries: Any = None
    ) -> Future[Any]:
        """Answer, or fail; with `retries` try again until they say that there is no hope."""
        future: Future[Any] = Future()
        for tried in itertools.count(1):
            self.sent.append((to, kind))
            self.values.append(value)
            if not self.failures:
                future.set_result(self.answer)
                break
            self.failures -= 1
            if retries is None or retries.delay(tried) is None:
                future.set_exception(PeerLost("planted"))
                break
        return future

    def deadline(self, timeout: float | None) -> tuple[float, int, str]:
        return 0.0, int((self.timeout_s if timeout is None else timeout) * 1000), ""

    def knows(self, incarnation: str) -> bool:
        return self.known

    def worker_name(self, incarnation: str) -> str:
        return f"name of {incarnation}"


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler("scheduler of a test")
    yield made
    made.close()


@pytest.fixture
def mine(agent: Agent, scheduler: Scheduler) -> RRefTable:
    return RRefTable(cast("CallingAgent", agent), WorkerInfo("me", 0), ME, scheduler, FAST)


def soon() -> Callable[[], float | None]:
    return Deadline.after(WITHIN_S).remaining


def gift(serial: int = 1, parent: str = OTHER) -> Ticket:
    return Ticket(Number(OTHER, serial), OWNER, Number(OTHER, serial + 100), parent)


# Values.


def test_a_value_of_ones_own_is_there_until_its_reference_is_dropped(mine: RRefTable) -> None:
    number = mine.own("value")
    assert mine.value(number).value() == "value"
    assert mine.fetch(number, mine.me, ME, None, None) == "value"
    mine.dropped(number, None)
    assert mine.wait_empty(soon())
    with pytest.raises(ReferenceFailed, match="freed by its owner"):
        _ = mine.value(number)


def test_a_value_is_made_once_and_leaves_no_room_behind(mine: RRefTable) -> None:
    number, fork = Number(OTHER, 1), Number(OTHER, 2)
    room = mine.create(number, fork, OTHER)
    assert room is not None
    assert mine.create(number, fork, OTHER) is None
    room.set_result(1)
    assert mine.handle(Kind.RREF_USER_DELETE, number, fork, OTHER)
    assert mine.create(number, fork, OTHER) is None
    assert mine._values == {}


def test_a_fetch_that_overtakes_the_creation_waits_for_it(mine: RRefTable) -> None:
    number, fork = Number(OTHER, 1), Number(OTHER, 2)
    waiting = mine.value(number)
    assert mine.value(number) is waiting
    room = mine.create(number, fork, OTHER)
    assert room is waiting
    room.set_result("value")
    mine.handle(Kind.RREF_USER_DELETE, number, fork, OTHER)
    assert mine.wait_empty(soon())
    assert waiting.value() == "value"


def test_a_fetch_does_not_wait_for_ever(mine: RRefTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OVERTAKEN_S", 0.01)
    _ = mine.value(Number(OTHER, 1))
    assert mine.wait_empty(soon())
    assert mine._values == {}


def test_a_local_fetch_takes_the_time_of_a_call(mine: RRefTable) -> None:
    number = Number(OTHER, 1)
    mine.create(number, Number(OTHER, 2), OTHER)
    with pytest.raises(CallTimedOut, match=r"more than set timeout \(50 ms\)"):
        mine.fetch(number, mine.me, ME, None, None)
    with pytest.raises(CallTimedOut, match=r"\(10 ms\)"):
        mine.fetch(number, mine.me, ME, None, 0.01)


def test_a_freed_value_is_released_without_the_lock(mine: RRefTable) -> None:
    seen: list[bool] = []

    class Value:
        def __del__(self) -> None:
            seen.append(mine._lock.acquire(blocking=False))
            mine._lock.release()

    number = mine.own(Value())
    mine._drop([(number, None)])
    assert seen == [True]


# Using others' values.


def test_a_reference_that_was_given_is_counted_and_accepted(mine: RRefTable, agent: Agent) -> None:
    ticket = gift()
    rref = mine.take(ticket, OWNER_INFO, is_answer=False)
    assert mine.wait_answered(soon())
    assert agent.sent == [(OWNER, Kind.RREF_FORK_REQUEST), (OTHER, Kind.RREF_CHILD_ACCEPT)]
    assert mine.is_confirmed(ticket.fork)
    assert rref.confirmed_by_owner()
    agent.answer = "value"
    assert rref.to_here() == "value"
    del rref
    assert mine.wait_empty(soon())
    assert agent.sent[-1] == (OWNER, Kind.RREF_USER_DELETE)


def test_a_reference_that_is_refused_is_useless(mine: RRefTable, agent: Agent) -> None:
    agent.answer = False
    rref = mine.take(gift(), OWNER_INFO, is_answer=False)
    assert mine.wait_answered(soon())
    with pytest.raises(ReferenceFailed, match="useless: its value was freed"):
        rref.to_here()
    with pytest.raises(ReferenceFailed, match="that is gone"):
        mine.pack(OTHER, rref)
    del rref
    assert mine.wait_empty(soon())


def test_a_reference_is_useless_without_its_owner(mine: RRefTable) -> None:
    rref = mine.take(gift(parent=""), OWNER_INFO, is_answer=False)
    mine.died(OWNER)
    with pytest.raises(ReferenceFailed, match="useless: its owner is gone"):
        rref.to_here()


def test_a_refusal_by_an_owner_that_is_gone_changes_nothing(
    mine: RRefTable, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:  # RR-5
    answers: dict[Kind, Future[Any]] = {
        Kind.RREF_FORK_REQUEST: Future(),
        Kind.RREF_CHILD_ACCEPT: Future(),
    }
    monkeypatch.setattr(agent, "request", lambda to, kind, *more: answers[kind])
    rref = mine.take(gift(), OWNER_INFO, is_answer=False)
    mine.died(OWNER)
    answers[Kind.RREF_CHILD_ACCEPT].set_result(True)
    answers[Kind.RREF_FORK_REQUEST].set_result(False)
    assert mine.wait_answered(soon())
    with pytest.raises(ReferenceFailed, match="useless: its owner is gone"):
        rref.to_here()
    del rref
    assert mine.wait_empty(soon())


def test_a_creation_that_is_settled_can_be_deleted(mine: RRefTable, agent: Agent) -> None:
    ticket = mine.ask(OWNER)
    mine.dropped(ticket.reference, ticket.fork)
    mine.creation_ended(ticket.fork)
    assert mine.wait_empty(soon())
    assert agent.sent == [(OWNER, Kind.RREF_USER_DELETE)]


def test_an_earlier_incarnation_of_this_worker_is_another_worker(mine: RRefTable) -> None:
    rref = mine.take(
        Ticket(Number("old", 1), "old", Number("old", 2), ""), mine.me, is_answer=False
    )
    assert not rref.is_owner()


# Messages.


def test_messages_are_sent_until_they_arrive(
    mine: RRefTable, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.failures = 6
    rref = mine.take(gift(parent=""), OWNER_INFO, is_answer=False)
    del rref
    assert mine.wait_empty(soon())
    assert agent.sent == [(OWNER, Kind.RREF_USER_DELETE)] * 7
    assert caplog.text.count("not succeeded after the specified number of max retries (2).") == 1


def test_a_worker_that_is_no_longer_known_is_gone(mine: RRefTable, agent: Agent) -> None:
    agent.failures, agent.known = 1000, False
    rref = mine.take(gift(parent=""), OWNER_INFO, is_answer=False)
    del rref
    assert mine.wait_answered(soon())
    assert mine.wait_empty(soon())
    assert len(agent.sent) == 3


def test_nothing_is_sent_again_to_the_dead(mine: RRefTable, agent: Agent) -> None:
    agent.failures = 1000
    rref = mine.take(gift(parent=""), OWNER_INFO, is_answer=False)
    del rref
    mine.died(OWNER)
    assert mine.wait_answered(soon())
    assert mine.wait_empty(soon())


def test_waiting_ends_when_time_is_up(mine: RRefTable) -> None:
    mine.own(1)
    assert not mine.wait_empty(Deadline.after(0.01).remaining)
    assert mine.wait_answered(lambda: None)


def test_messages_of_all_kinds_are_counted(mine: RRefTable) -> None:
    number = mine.own("value")
    assert mine.handle(Kind.RREF_FORK_REQUEST, number, Number(OTHER, 1), OTHER)
    assert mine.counts()["forks"] == 1
    assert mine.handle(Kind.RREF_USER_DELETE, number, Number(OTHER, 1), OTHER)
    assert mine.counts()["forks"] == 0
    assert mine.handle(Kind.RREF_CHILD_ACCEPT, number, Number(ME, 9), OTHER)
    mine._drop([(number, None)])
    assert not mine.handle(Kind.RREF_FORK_REQUEST, number, Number(OTHER, 1), OTHER)
    with pytest.raises(UsageError, match="PYTHON_CALL is not about references"):
        mine.handle(Kind.PYTHON_CALL, number, number, OTHER)


# Calls that ended without their answers.


def call(number: int, *given: Ticket) -> Message:
    return Message(Kind.PYTHON_CALL, number, given=given)


def test_references_of_an_unread_call_are_reported_and_those_of_its_reply_dropped(
    mine: RRefTable, agent: Agent
) -> None:
    agent.answer = [tuple(gift(parent=""))]
    mine.unread(OTHER, call(3, gift(7)))
    assert mine.wait_answered(soon())
    assert agent.sent == [(OTHER, Kind.RREF_UNREAD), (OWNER, Kind.RREF_USER_DELETE)]
    assert agent.values[0] == {3: [tuple(gift(7))]}
    assert mine.wait_empty(soon())


def test_unread_calls_that_end_together_are_reported_together(
    mine: RRefTable, agent: Agent, scheduler: Scheduler
) -> None:
    begin = threading.Event()

    def wait() -> None:
        begin.wait(WITHIN_S)

    scheduler.submit(wait)
    agent.answer = []
    for number in (1, 2):
        mine.unread(OTHER, call(number))
    mine.unread(OWNER, call(3))
    begin.set()
    assert mine.wait_answered(soon())
    assert agent.values == [{1: [], 2: []}, {3: []}]


def test_messages_about_references_give_nothing_themselves(mine: RRefTable, agent: Agent) -> None:
    mine.unread(OTHER, Message(Kind.RREF_USER_DELETE, 1))
    mine.died(OWNER)
    mine.unread(OWNER, call(1))
    assert mine.wait_answered(soon())
    assert agent.sent == []


def test_a_worker_that_is_gone_gets_no_message(mine: RRefTable, agent: Agent) -> None:
    agent.failures, agent.known = 1000, False
    mine.unread(OTHER, call(1))
    assert mine.wait_answered(soon())
    assert mine._unread == {}


def test_an_answer_gives_nothing_after_its_caller_has_asked(mine: RRefTable) -> None:
    rref = of_mine(mine)
    _, _, given = mine.pack(OTHER, rref)
    mine.answered(OTHER, 1, given)
    for _ in range(2):
        assert mine.unread_by(OTHER, {1: [], 2: []}) == [tuple(given[0])]
    assert mine.counts()["forks"] == 1
    _, _, late = mine.pack(OTHER, rref)
    with pytest.raises(ReferenceFailed, match="no call waits"):
        mine.answered(OTHER, 2, late)
    assert mine.counts()["forks"] == 1


def test_references_sent_to_a_worker_that_did_not_answer_are_dropped(
    mine: RRefTable, agent: Agent
) -> None:
    assert mine.unread_by(OTHER, {1: [tuple(gift())]}) == []
    assert mine.wait_answered(soon())
    assert mine.wait_empty(soon())
    assert [kind for _, kind in agent.sent] == [
        Kind.RREF_FORK_REQUEST,
        Kind.RREF_CHILD_ACCEPT,
        Kind.RREF_USER_DELETE,
    ]


# The end.


def test_a_table_that_ends_releases_everything(mine: RRefTable, agent: Agent) -> None:
    rref, own = mine.take(gift(parent=""), OWNER_INFO, is_answer=False), of_mine(mine)
    assert mine.part(soon()) == []
    assert agent.sent == [(OWNER, Kind.RREF_USER_DELETE)]
    for held in (rref, own):
        with pytest.raises(ReferenceFailed):
            held.to_here()
    assert not any(mine.counts().values())


def test_references_that_others_hold_at_the_end_are_shown(
    mine: RRefTable, caplog: pytest.LogCaptureFixture
) -> None:
    held = [of_mine(mine) for _ in range(12)]
    mine.pack(OTHER, held)
    mine.pack(OWNER, held[0])
    assert mine.leaks()[0].endswith("is still held by name of other, name of owner")
    del held
    leaks = mine.part(Deadline.after(0.01).remaining)
    assert len(leaks) == 12
    assert len(caplog.messages) == 11
    assert caplog.messages[0] == (
        f"shutdown of {mine.me}: a value that lives here (me.1) is still held by "
        "name of other, name of owner"
    )
    assert caplog.messages[-1] == f"shutdown of {mine.me}: and 2 more"


def test_all_that_can_be_counted(mine: RRefTable) -> None:
    mine.own("value")
    mine.create(Number(OTHER, 1), Number(OTHER, 2), OTHER)
    mine.ask(OWNER)
    assert mine.counts() == {
        "owners": 2,
        "forks": 1,
        "held": 1,
        "pending_users": 1,
        "pending_children": 0,
        "pending_futures": 1,
    }
    assert mine.shared_values == 1


def test_a_receiver_can_wait_until_the_owner_counts_its_reference(mine: RRefTable) -> None:
    asked = mine.ask(OWNER)
    assert mine.is_held(asked.fork)
    assert not mine.wait_confirmed([asked.fork], lambda: 0)
    mine.creation_ended(asked.fork)
    assert mine.wait_confirmed([asked.fork], lambda: WITHIN_S)
    mine.release_all()
    assert mine.wait_answered(lambda: WITHIN_S)
    assert not mine.is_held(asked.fork)


# Packing.


class Unwilling:
    """Cannot be pickled at all."""

    def __reduce__(self) -> Any:
        raise ZeroDivisionError("on purpose")


class Caller:
    """Packs and unpacks something else while it is pickled, as a call of its own would."""

    def __init__(self, rrefs: RRefTable, inner: Any) -> None:
        self.rrefs = rrefs
        self.inner = inner

    def __reduce__(self) -> Any:
        body, buffers, tickets = self.rrefs.pack(OWNER, self.inner)
        assert len(tickets) == 1
        self.rrefs.unpack(body, buffers)
        return str, ()


def of_mine(mine: RRefTable) -> RRef[str]:
    return make_rref(mine, mine.own("value"), mine.me, ME, None)


def test_references_of_a_value_that_cannot_be_packed_are_not_given(mine: RRefTable) -> None:
    rref = of_mine(mine)
    with pytest.raises(ZeroDivisionError):
        mine.pack(OTHER, (rref, Unwilling()))
    assert mine.counts() == mine.counts() | {"forks": 0, "owners": 1}
    assert here.packing is None


def test_a_reference_that_is_packed_anew_is_given_once(mine: RRefTable) -> None:
    rref = of_mine(mine)
    body, buffers, tickets = mine.pack(OTHER, (rref, lambda: 1))  # plain pickle cannot do the rest
    assert len(tickets) == mine.counts()["forks"] == 1
    assert buffers == []
    with pytest.raises(UsageError, match="part of a call"):
        pickle.dumps(rref)
    copy, _ = mine.unpack(body, buffers)
    assert copy.local_value() == "value"
    with pytest.raises(UsageError, match="part of a call"):
        pickle.loads(body)


def test_a_value_that_is_packed_may_make_calls_of_its_own(mine: RRefTable) -> None:
    rref, other = of_mine(mine), of_mine(mine)
    body, buffers, tickets = mine.pack(OTHER, (Caller(mine, other), rref))
    assert [ticket.reference for ticket in tickets] == [rref._reference]
    assert mine.unpack(body, buffers)[1].is_owner()
    assert (here.packing, here.unpacking) == (None, None)


def test_a_reference_of_another_agent_is_refused(
    mine: RRefTable, agent: Agent, scheduler: Scheduler
) -> None:
    theirs = of_mine(RRefTable(cast("CallingAgent", agent), OWNER_INFO, OWNER, scheduler, FAST))
    with pytest.raises(UsageError, match="belongs to another agent"):
        mine.pack(OTHER, theirs)
