"""Requests that are sent until they are answered; the test has time and transport in its hands."""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from holdfast.clock import Deadline
from holdfast.errors import (
    CallCancelled,
    CallTimedOut,
    Overloaded,
    PeerLost,
    PeerViolation,
    TimeoutExpired,
    UsageError,
)
from holdfast.rpc.client.calls import ACK_BYTES, Backoff
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.client.future import Driver, Future
from holdfast.rpc.client.peer import Peer
from holdfast.rpc.client.pipe import Reply
from holdfast.rpc.client.retry_policy import RetryPolicy
from holdfast.rpc.client.retrying import (
    RetriedCall,
    RetryingCalls,
    note,
)
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.server.dedup import DedupTable, DedupVerdict
from holdfast.rpc.wire.acknowledgement import OPEN_CALLS_MAX
from holdfast.rpc.wire.messages import NEVER, Kind, Message
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.testing.clock import ManualClock

WITHIN_S = 20.0
LIFE = "a life of two"
BROKEN = PeerLost("it broke")
POLICY = RetryPolicy(max_retries=3, delay_s=1.0, backoff=2.0)
STOPPED = "RPC Agent is no longer running on Node 1. Cannot retry message."


class FakePeer:
    """A peer that takes notes."""

    def __init__(self, sends: Sends, incarnation: str = LIFE) -> None:
        self.post = sends.post
        self.contact = Contact(WorkerInfo("two", 2), incarnation, "", "", "")
        self.lost: PeerLost | None = None
        self.notes: list[Message] = []

    def transmit(self, message: Message) -> None:
        self.notes.append(message)

    def find(self) -> Peer:
        return cast("Peer", self)


class Sends:
    """Keeps what is sent until the test answers it; or does at once what `acts` say."""

    def __init__(self) -> None:
        self.sent: list[tuple[Message, Reply, float]] = []
        self.acts: list[Callable[[Reply], object]] = []
        self.driver: Driver | None = None

    def post(self, message: Message, reply: Reply, at: float) -> Driver | None:
        self.sent.append((message, reply, at))
        if self.acts:
            self.acts.pop(0)(reply)
        return self.driver

    def fail(self, error: Exception = BROKEN) -> None:
        """Tell the latest try that it failed."""
        self.sent[-1][1](error)


class Later:
    """Scheduler that are done when the test says so, by its clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def submit(self, task: Callable[[], None], delay_s: float = 0.0) -> None:
        self.waiting.append((self._clock.monotonic() + delay_s, task))

    def pass_time(self, seconds: float = 0.0) -> None:
        """Let time pass and do what is due by then."""
        now = self._clock.advance(seconds)
        due = [task for at, task in self.waiting if at <= now]
        self.waiting = [(at, task) for at, task in self.waiting if at > now]
        for task in due:
            task()


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sends = Sends()
        self.later = Later(self.clock)
        self.two = FakePeer(self.sends)
        self.heard: list[Message | Exception] = []
        self.asked: list[RetriedCall] = []
        self.desk = RetryingCalls(
            WorkerInfo("one", 1),
            itertools.count(1),
            cast("Scheduler", self.later),
            self.clock,
        )

    def post(self, *args: Any, **options: Any) -> None:
        """Send a request; nothing waits for it."""
        self.asked.append(self.ask(*args, **options))

    def ask(
        self,
        patience: Backoff = POLICY,
        *,
        kind: Kind = Kind.PYTHON_CALL,
        after_s: float | None = None,
        find: Callable[[], Peer] | None = None,
    ) -> RetriedCall:
        at = NEVER if after_s is None else self.clock.monotonic() + after_s
        message = Message(kind, 0, b"body", budget_ms=0 if after_s is None else int(after_s * 1000))
        message.given = ("a reference",)  # so that `_complete` reads the reply
        return self.desk.post(LIFE, find or self.two.find, message, self._complete, at, patience)

    def _complete(self, request: Message, future: Future[Any], answer: Message | Exception) -> None:
        self.heard.append(answer)
        future.finish(None, None)

    def acknowledged(self) -> list[Message]:
        self.later.pass_time(1.0)
        return [note for note in self.two.notes if note.kind is Kind.ACKNOWLEDGE]


@pytest.fixture
def world() -> World:
    return World()


def answer(call: int = 1, kind: Kind = Kind.REPLY) -> Message:
    return Message(kind, call, b"answer")


def text(outcome: Message | Exception, kind: type[Exception] = PeerLost) -> str:
    assert type(outcome) is kind
    return str(outcome)


# Tries.


def test_it_is_sent_again_after_growing_delays_until_it_is_answered(world: World) -> None:
    world.post()
    sent_at = []
    for delay in (1.0, 2.0, 4.0):
        world.sends.fail()
        world.later.pass_time(delay - 0.01)
        before = len(world.sends.sent)
        world.later.pass_time(0.01)
        sent_at.append(len(world.sends.sent) - before)
    assert sent_at == [1, 1, 1]
    assert world.heard == []
    world.sends.sent[-1][1](answer())
    assert world.heard == [answer()]
    assert {message.call for message, _, _ in world.sends.sent} == {1}
    assert all(message.once for message, _, _ in world.sends.sent)
    assert len(world.desk) == 0


def test_when_the_policy_is_exhausted_it_says_how_often_it_tried_and_why(world: World) -> None:
    world.post()
    for _ in range(4):
        world.sends.fail()
        world.later.pass_time(100.0)
    assert len(world.sends.sent) == 4
    assert [text(outcome) for outcome in world.heard] == [
        "The RPC has not succeeded after the specified number of max retries (3). it broke"
    ]
    lost = world.heard[0]
    assert isinstance(lost, PeerLost)
    assert (lost.peer, lost.incarnation) == ("two", LIFE)


def test_every_try_that_failed_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "holdfast.rpc")
    world.post()
    for _ in range(2):
        world.sends.fail()
        world.later.pass_time(100.0)
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        "try 1 failed: it broke",
        "try 2 failed: it broke",
    ]


def test_a_try_may_have_a_limit_of_its_own(world: World) -> None:
    world.post(RetryPolicy(max_retries=0, try_s=0.5), after_s=10)
    now = world.clock.monotonic()
    assert world.sends.sent[0][2] == now + 0.5
    world.sends.fail(TimeoutError())
    told = text(world.heard[0], CallTimedOut)  # a peer that is silent is not lost by that
    assert told.endswith("max retries (0). No answer came in time.")


def test_the_limit_of_a_try_is_never_beyond_the_deadline(world: World) -> None:
    world.post(RetryPolicy(try_s=50.0), after_s=10)
    world.post(RetryPolicy(), after_s=10)
    world.post(RetryPolicy())
    now = world.clock.monotonic()
    assert [at for _, _, at in world.sends.sent] == [now + 10, now + 10, NEVER]


def test_a_later_try_carries_the_time_that_is_left(world: World) -> None:
    world.post(after_s=10)
    world.sends.fail()
    world.later.pass_time(1.0)
    assert [message.budget_ms for message, _, _ in world.sends.sent] == [10_000, 9_000]


def test_a_request_that_cannot_be_sent_fails_at_once(world: World) -> None:
    def refuse(_: Reply) -> None:
        raise UsageError("too large")

    world.sends.acts = [refuse]
    world.post()
    assert [text(outcome, UsageError) for outcome in world.heard] == ["too large"]
    assert len(world.desk) == 0


def test_a_retry_that_cannot_be_sent_is_the_last(world: World) -> None:
    def refuse(_: Reply) -> None:
        raise UsageError("too large")

    world.post()
    world.sends.fail()
    world.sends.acts = [refuse]
    world.later.pass_time(1.0)
    assert [text(outcome, UsageError) for outcome in world.heard] == ["too large"]
    assert len(world.desk) == 0
    world.later.pass_time(100.0)
    assert len(world.sends.sent) == 2


def test_a_try_that_is_interrupted_has_failed_and_the_interrupt_goes_on(world: World) -> None:
    def interrupt(_: Reply) -> None:
        raise KeyboardInterrupt

    world.sends.acts = [interrupt]
    with pytest.raises(KeyboardInterrupt):
        world.post()
    world.later.pass_time(1.0)
    assert len(world.sends.sent) == 2
    world.sends.sent[-1][1](answer())
    assert world.heard == [answer()]


def test_overloaded_ends_a_request_unless_an_earlier_try_was_sent(world: World) -> None:
    world.post()
    world.sends.fail(Overloaded("too much"))
    assert [text(outcome, Overloaded) for outcome in world.heard] == ["too much"]
    world.post()
    world.sends.fail()
    world.later.pass_time(1.0)
    world.sends.fail(Overloaded("too much"))
    world.later.pass_time(2.0)
    world.sends.sent[-1][1](answer(2))
    assert world.heard[1:] == [answer(2)]


def test_an_answer_is_final_whatever_it_says(world: World) -> None:
    world.post()
    world.sends.sent[-1][1](answer(kind=Kind.FAILURE))
    assert world.heard == [answer(kind=Kind.FAILURE)]


def test_a_request_that_may_run_twice_is_retried_after_any_failure(world: World) -> None:
    world.post(kind=Kind.CLEANUP_AUTOGRAD_CONTEXT_REQ)
    world.sends.fail(Overloaded("too much"))
    world.later.pass_time(1.0)
    world.sends.sent[-1][1](answer(kind=Kind.FAILURE))
    world.later.pass_time(2.0)
    world.sends.sent[-1][1](answer())
    assert world.heard == [answer()]
    assert not any(message.once for message, _, _ in world.sends.sent)
    assert len(world.sends.sent) == 3
    assert world.acknowledged() == world.two.notes == []


def test_the_last_refusal_of_a_request_that_may_run_twice_is_its_outcome(world: World) -> None:
    world.post(RetryPolicy(max_retries=0), kind=Kind.CLEANUP_AUTOGRAD_CONTEXT_REQ)
    world.sends.sent[-1][1](answer(kind=Kind.FAILURE))
    assert world.heard == [answer(kind=Kind.FAILURE)]


def test_a_late_answer_counts_and_a_late_failure_does_not(world: World) -> None:
    world.post()
    world.sends.fail()
    world.sends.fail()  # of the same try, again
    assert len(world.later.waiting) == 1
    world.later.pass_time(1.0)
    assert len(world.sends.sent) == 2
    world.sends.sent[0][1](BROKEN)
    world.later.pass_time(100.0)
    assert len(world.sends.sent) == 2
    world.sends.fail()
    world.later.pass_time(2.0)
    assert len(world.sends.sent) == 3
    failure = answer(kind=Kind.FAILURE)
    world.sends.sent[0][1](failure)
    world.sends.sent[1][1](answer())
    world.later.pass_time(1.0)
    world.sends.fail()
    assert world.heard == [failure]
    assert world.later.waiting == []


# The deadline.


def test_a_try_that_fails_at_the_deadline_is_the_last(world: World) -> None:
    world.post(RetryPolicy(max_retries=0), after_s=10)
    world.clock.advance(10.0)
    world.sends.fail(TimeoutError())
    assert [text(outcome, CallTimedOut) for outcome in world.heard] == [
        "RPC ran for more than set timeout (10000 ms) and will now be marked with an error"
    ]
    world.later.pass_time()
    assert [note.kind for note in world.two.notes] == [Kind.CANCEL]
    assert world.two.notes[0].call == 1
    assert [note.call for note in world.acknowledged()] == [2]


def test_no_retry_is_waited_for_that_would_come_after_the_deadline(world: World) -> None:
    world.post(after_s=1.5)
    world.sends.fail()
    world.later.pass_time(1.0)
    assert world.heard == []
    world.sends.fail()
    assert text(world.heard[0], CallTimedOut) == (
        "RPC ran for more than set timeout (1500 ms) and will now be marked with an error: "
        "try 2 failed (it broke), and another one would come too late"
    )


def test_nothing_is_sent_after_the_deadline_even_if_the_scheduler_is_late(world: World) -> None:
    world.post(after_s=1.5)
    world.sends.fail()
    world.later.pass_time(2.0)
    assert len(world.sends.sent) == 1
    assert text(world.heard[0], CallTimedOut).startswith("RPC ran for more than")


# The receiver.


def test_a_worker_that_is_gone_is_not_retried_and_no_other_is_called(world: World) -> None:
    world.post()
    world.two.lost = PeerLost("it is gone", peer="two", incarnation=LIFE)
    world.sends.fail()
    assert world.heard == [world.two.lost]
    world.later.pass_time(100.0)
    assert len(world.sends.sent) == 1
    assert world.two.notes == []


def test_calls_that_wait_for_a_retry_fail_at_once_when_the_worker_is_gone(world: World) -> None:
    world.post()
    world.sends.fail()
    gone = PeerLost("it is gone")
    world.desk.lost("another life", gone)
    assert world.heard == []
    world.desk.lost(LIFE, gone)
    assert world.heard == [gone]
    world.later.pass_time(100.0)
    assert len(world.sends.sent) == 1


def test_a_receiver_may_become_known_later(world: World) -> None:
    known: list[FakePeer] = []

    def find() -> Peer:
        if not known:
            raise PeerLost("it is not known")
        return known[0].find()

    world.post(find=find)
    assert world.sends.sent == []
    known.append(world.two)
    world.later.pass_time(1.0)
    world.sends.sent[-1][1](answer())
    assert world.heard == [answer()]


def test_an_unknown_receiver_gets_no_cancellation(world: World) -> None:
    def find() -> Peer:
        raise PeerLost("it is not known")

    world.post(find=find, after_s=0.5)
    assert "it is not known" in text(world.heard[0], CallTimedOut)
    assert world.later.waiting == []
    world.post(RetryPolicy(max_retries=0), find=find)
    lost = world.heard[1]
    assert isinstance(lost, PeerLost)
    assert (lost.peer, lost.incarnation) == ("", LIFE)


# Acknowledging.


def test_answers_are_acknowledged_together(world: World) -> None:
    for _ in range(3):
        world.post()
    for _, reply, _ in list(world.sends.sent):
        reply(answer())
    world.later.pass_time()
    assert world.two.notes == []
    assert len(world.later.waiting) == 1
    assert [note.call for note in world.acknowledged()] == [4]


def test_large_answers_are_acknowledged_before_more_is_asked_for(world: World) -> None:
    half = Message(Kind.REPLY, 0, b"", [bytes(ACK_BYTES // 2)])
    world.post()
    world.sends.sent[0][1](half)
    world.post()
    assert world.two.notes == []
    world.sends.sent[1][1](half)
    seen: list[int] = []
    world.sends.acts = [lambda reply: seen.extend(note.call for note in world.two.notes)]
    world.post()
    assert seen == [3]
    assert len(world.acknowledged()) == 1  # not once more
    world.sends.sent[2][1](answer())
    assert [note.call for note in world.acknowledged()] == [3, 4]


def test_an_open_request_is_never_acknowledged(world: World) -> None:
    table = DedupTable()
    for _ in range(3):
        world.post()
    for call in (1, 2, 3):
        table.arrived("one", call, cast("Any", None))
        table.answered("one", call, answer(call))
    for number in (2, 0):
        world.sends.sent[number][1](answer())
    for told in world.acknowledged():
        table.acknowledged("one", told)
    verdicts = [table.arrived("one", call, cast("Any", None))[0] for call in (1, 2, 3)]
    assert verdicts == [DedupVerdict.FORGOTTEN, DedupVerdict.ANSWERED, DedupVerdict.FORGOTTEN]


def test_many_open_ones_hold_up_acknowledgements_but_are_never_acknowledged(world: World) -> None:
    count = OPEN_CALLS_MAX + 3
    for _ in range(count):
        world.post()
    world.sends.sent[-1][1](answer())
    (told,) = world.acknowledged()
    assert told.call == OPEN_CALLS_MAX + 1
    assert len(told.body) == 8 * OPEN_CALLS_MAX


def test_a_note_that_cannot_be_sent_is_no_error(world: World) -> None:
    def refuse(message: Message) -> None:
        raise PeerViolation("planted")

    world.two.transmit = refuse  # type: ignore[method-assign]
    note(world.two.find(), answer())


# The end.


def test_closing_fails_open_requests_and_sends_nothing_more(world: World) -> None:
    """IS-4."""
    world.post()  # it waits for its next try
    world.sends.fail()
    world.post()  # it waits for its answer
    world.desk.close()
    assert [text(outcome) for outcome in world.heard] == [STOPPED, STOPPED]
    world.later.pass_time(100.0)
    assert len(world.sends.sent) == 2
    world.sends.sent[1][1](answer(2))
    world.post()
    assert [text(outcome) for outcome in world.heard] == [STOPPED] * 3
    assert len(world.sends.sent) == 2
    assert len(world.desk) == 0
    assert world.two.notes == []
    world.desk.close()
    assert world.desk.closed


def test_a_cancelled_request_is_not_sent_again(world: World) -> None:
    request = world.ask()
    world.sends.fail()
    request.cancel()
    assert [type(outcome) for outcome in world.heard] == [CallCancelled]
    world.later.pass_time(100.0)
    assert len(world.sends.sent) == 1
    assert [note.kind for note in world.two.notes] == [Kind.CANCEL, Kind.ACKNOWLEDGE]
    request.cancel()
    world.later.pass_time()
    assert len(world.two.notes) == 2


def test_a_request_cancelled_while_a_try_fails_is_not_sent_again(world: World) -> None:
    class Stops(RetryPolicy):
        def delay(self, tried: int) -> float | None:
            request.cancel()
            return RetryPolicy.delay(self, tried)

    request = world.ask(Stops())
    world.sends.fail()
    assert [type(outcome) for outcome in world.heard] == [CallCancelled]
    world.later.pass_time(100.0)
    assert len(world.sends.sent) == 1


def test_a_request_cancelled_while_a_try_is_under_way_ends_and_is_given_up(world: World) -> None:
    given_up: list[int] = []

    class Carries:
        def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
            raise AssertionError("no thread waits")

        def give_up(self, call: int) -> None:
            assert world.heard == []
            given_up.append(call)

    request = world.ask()
    request.driver = Carries()
    request.cancel()
    assert given_up == [request.message.call]
    assert [type(outcome) for outcome in world.heard] == [CallCancelled]
    world.sends.sent[-1][1](answer())  # too late
    assert len(world.heard) == 1
    assert len(world.desk) == 0


def test_a_request_cancelled_while_another_thread_sends_it_is_given_up(world: World) -> None:
    given_up: list[int] = []

    class Carries(Reads):
        def give_up(self, call: int) -> None:
            given_up.append(call)

    world.sends.driver = Carries()
    world.post(RetryPolicy(delay_s=1.0))
    world.sends.fail()
    world.sends.acts = [lambda reply: world.asked[0].cancel()]
    world.later.pass_time(1.0)
    assert len(world.sends.sent) == 2
    assert given_up == [1]
    assert [type(outcome) for outcome in world.heard] == [CallCancelled]


# Waiting.


class Reads:
    """The driver of a try: it does one thing each time it is asked to read."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.acts = list(acts)

    def drive(self, done: Callable[[], bool], deadline: Deadline) -> None:
        if self.acts and not done():
            self.acts.pop(0)()


def test_a_waiting_thread_reads_the_answer_and_makes_the_retries(world: World) -> None:
    sends = world.sends
    sends.driver = Reads(
        sends.fail,
        lambda: sends.sent[-1][1](answer()),
    )
    request = world.ask(RetryPolicy(delay_s=0.0))
    request.wait(WITHIN_S)
    assert world.heard == [answer()]
    assert len(sends.sent) == 2
    world.later.pass_time(100.0)  # the task comes too late
    assert len(sends.sent) == 2


def test_a_task_that_was_overtaken_does_not_bring_the_next_try_forward(world: World) -> None:
    request = world.ask()
    world.sends.fail()
    world.clock.advance(1.0)
    request.drive(lambda: len(world.sends.sent) == 2, Deadline.after(WITHIN_S))
    world.sends.fail()
    world.later.pass_time(1.0)
    assert len(world.sends.sent) == 2
    world.later.pass_time(1.0)
    assert len(world.sends.sent) == 3


def test_a_thread_that_waits_between_two_tries_is_woken_by_the_end(world: World) -> None:
    request = world.ask(RetryPolicy(delay_s=1000.0))
    world.sends.fail()
    entered = threading.Event()

    def done() -> bool:
        entered.set()
        return False

    thread = threading.Thread(target=request.drive, args=(done, Deadline.after(WITHIN_S)))
    thread.start()
    assert entered.wait(WITHIN_S)
    world.desk.close()
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    assert [text(outcome) for outcome in world.heard] == [STOPPED]


def test_a_waiting_thread_leaves_at_its_deadline(world: World) -> None:
    def wait() -> None:
        with pytest.raises(TimeoutExpired):
            request.wait(0.01)

    request = world.ask()
    wait()  # no thread reads
    world.sends.fail()
    wait()  # between two tries
    world.sends.driver = Reads()
    world.later.pass_time(1.0)
    wait()  # the reader leaves it to others
    assert world.heard == []
    world.sends.sent[-1][1](answer())
    request.wait(WITHIN_S)
    assert world.heard == [answer()]


def test_a_waiting_thread_makes_no_try_while_another_thread_sends_it(
    world: World,
) -> None:
    seen: list[int] = []

    def wait(reply: Reply) -> None:
        with pytest.raises(TimeoutExpired):
            world.asked[0].wait(0.01)
        seen.append(len(world.sends.sent))

    world.post()
    world.sends.fail()
    world.sends.acts = [wait]
    world.later.pass_time(1.0)
    assert seen == [2]


def test_a_reply_that_cannot_be_read_fails_the_call(world: World) -> None:
    message = Message(Kind.PYTHON_CALL, 0, b"body")
    request = world.desk.post(LIFE, world.two.find(), message, _never, NEVER, POLICY)
    world.sends.sent[-1][1](answer())
    with pytest.raises(pickle.UnpicklingError):
        request.wait(WITHIN_S)
    plain = world.desk.post(LIFE, world.two.find(), replace(message), _never, NEVER, POLICY)
    world.sends.sent[-1][1](Message(Kind.REPLY, 2, pickle.dumps(7)))
    assert plain.wait(WITHIN_S) == 7


def _never(request: Message, future: Future[Any], outcome: Message | Exception) -> None:
    raise AssertionError("a plain reply needs no table of references")


def test_a_driver_that_comes_after_the_answer_is_not_kept(world: World) -> None:
    world.sends.driver = Reads()
    world.sends.acts = [lambda reply: reply(answer())]
    request = world.ask()
    assert request.driver is None
    assert world.heard == [answer()]
