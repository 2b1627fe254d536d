"""The callee's side of an agent: every request is answered, once, and run at most once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import (
    HoldfastError,
    Overloaded,
    PeerLost,
    ReferenceFailed,
    StoreUnavailable,
    UsageError,
)
from holdfast.rpc.client.blocking import pop_release, push_release
from holdfast.rpc.client.deadlines import deadline_here
from holdfast.rpc.client.future import ASYNC_MARK, Future
from holdfast.rpc.client.scheduler import Scheduler
from holdfast.rpc.rref.rref import CallingAgent
from holdfast.rpc.rref.table import RRefTable
from holdfast.rpc.server.dedup import DedupTable
from holdfast.rpc.server.dispatcher import Dispatcher
from holdfast.rpc.server.durations import SLOW_S
from holdfast.rpc.server.event_loop import EventLoop
from holdfast.rpc.values.errors import load_error
from holdfast.rpc.values.funcref import encode_function, named_by
from holdfast.rpc.values.pickling import dump, load
from holdfast.rpc.wire.acknowledgement import encode_acknowledgement
from holdfast.rpc.wire.hello import Purpose, WorkerHello
from holdfast.rpc.wire.messages import NEVER, Kind, Message
from holdfast.rpc.wire.tickets import Number, Ticket, encode_creation
from holdfast.rpc.wire.worker_info import WorkerInfo
from tests.waiting import until

ME = WorkerInfo("me", 0)
CALLER = WorkerHello("you", 1, "your life", "my life", Purpose.PIPE)
SOON = 30.0
UNSERVED = Kind.CLEANUP_AUTOGRAD_CONTEXT_REQ

ran: list[object] = []
gate = threading.Event()
promised: list[Future[int]] = []


@pytest.fixture
def answerer() -> Iterator[Dispatcher]:
    ran.clear()
    promised.clear()
    gate.clear()
    scheduler, loop = Scheduler("test-scheduler"), EventLoop("test-loop")
    try:
        rrefs = RRefTable(cast("CallingAgent", loop), ME, "my life", scheduler)
        known = {"your life", "a new life"}
        yield Dispatcher(ME, "my life", rrefs, loop, SYSTEM_CLOCK, known.__contains__)
    finally:
        gate.set()
        loop.close()
        scheduler.close()


class Later:
    """What hears an answer that comes later."""

    def __init__(self) -> None:
        self.answers: list[Message] = []
        self.here = threading.Semaphore(0)

    def __call__(self, answer: Message) -> None:
        self.answers.append(answer)
        self.here.release()

    def wait(self) -> Any:
        assert self.here.acquire(timeout=SOON)
        return read(self.answers[-1])


def gone(answer: Message) -> None:
    raise ConnectionError("Connection closed by peer")


def call(
    number: int, function: Callable[..., Any], *args: Any, once: bool = False, budget_ms: int = 0
) -> Message:
    body, buffers = dump((function, args, None))
    return Message(Kind.PYTHON_CALL, number, body, buffers, budget_ms, once)


TICKET = Ticket(Number("your life", 1), "my life", Number("your life", 2), "")


def creation(
    number: int,
    *request: Any,
    kind: Kind = Kind.PYTHON_REMOTE_CALL,
    once: bool = False,
) -> Message:
    body, buffers = dump(request)
    return Message(kind, number, encode_creation(TICKET) + body, buffers, once=once)


def read(answer: Message | None) -> Any:
    assert answer is not None
    if answer.kind is Kind.FAILURE:
        raise load_error(answer.body, answer.buffers)
    assert answer.kind is Kind.REPLY
    return load(answer.body, answer.buffers)


def add(one: int, two: int) -> int:
    ran.append((one, two))
    return one + two


def wait() -> int:
    ran.append("wait")
    assert gate.wait(SOON)
    return len(ran)


def left() -> float:
    return deadline_here()


async def left_later() -> float:
    await asyncio.sleep(0)
    return deadline_here()


async def forever() -> None:
    ran.append("began")
    try:
        await asyncio.Event().wait()
    finally:
        ran.append("ended")


def promise() -> Future[int]:
    promised.append(Future())
    return promised[-1]


def marked() -> Future[int]:
    return promise()


setattr(marked, ASYNC_MARK, True)


def test_an1_a_request_is_run_and_answered_at_once(answerer: Dispatcher) -> None:
    later = Later()
    answer = answerer.handle(CALLER, call(7, add, 1, 2), later)
    assert read(answer) == 3
    assert answer is not None
    assert answer.call == 7
    assert not later.answers


def test_an1_whatever_goes_wrong_is_an_answer(answerer: Dispatcher) -> None:
    with pytest.raises(TypeError):
        read(answerer.handle(CALLER, call(1, add, 1), Later()))
    with pytest.raises(UsageError, match="cannot be pickled"):
        read(answerer.handle(CALLER, call(2, threading.Lock), Later()))
    with pytest.raises(Exception, match="pickle data was truncated|Ran out of input"):
        read(answerer.handle(CALLER, Message(Kind.PYTHON_CALL, 3, b""), Later()))
    with pytest.raises(UsageError, match="does not serve it"):
        read(answerer.handle(CALLER, Message(UNSERVED, 4, dump(())[0]), Later()))


def test_calls_of_another_name_are_calls(answerer: Dispatcher) -> None:
    message = Message(Kind.SCRIPT_CALL, 1, dump((max, (1, 2), None))[0])
    assert read(answerer.handle(CALLER, message, Later())) == 2
    message = creation(2, max, (3, 4), None, kind=Kind.SCRIPT_REMOTE_CALL)
    assert read(answerer.handle(CALLER, message, Later())) is None
    later = Later()
    fetch = Message(Kind.SCRIPT_RREF_FETCH_CALL, 3, dump(TICKET.reference)[0])
    assert answerer.handle(CALLER, fetch, later) is None
    assert later.wait() == 4


def test_more_kinds_can_be_served(answerer: Dispatcher) -> None:
    answerer.add_handler(UNSERVED, lambda caller, request: (caller.name, request))
    message = Message(UNSERVED, 1, dump(5)[0])
    assert read(answerer.handle(CALLER, message, Later())) == ("you", 5)


def test_the_function_of_a_call_has_the_deadline_of_the_call(answerer: Dispatcher) -> None:
    before = SYSTEM_CLOCK.monotonic()
    assert before < read(answerer.handle(CALLER, call(1, left, budget_ms=5000), Later())) - 5 + 1e-3
    assert deadline_here() == NEVER
    assert read(answerer.handle(CALLER, call(2, left), Later())) == NEVER
    later = Later()
    assert answerer.handle(CALLER, call(3, left_later, budget_ms=5000), later) is None
    assert before + 5 <= later.wait() <= SYSTEM_CLOCK.monotonic() + 5


def test_an1_a_future_answers_when_it_is_complete(answerer: Dispatcher) -> None:
    later = Later()
    assert answerer.handle(CALLER, call(1, marked), later) is None
    promised[0].set_result(4)
    assert later.wait() == 4
    assert answerer.handle(CALLER, call(2, marked), later) is None
    promised[1].set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        later.wait()
    assert answerer.handle(CALLER, call(3, marked), later) is None
    promised[2].set_result(threading.Lock())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be pickled"):
        later.wait()
    assert answerer.handle(CALLER, call(4, marked), gone) is None
    promised[3].set_result(4)  # without a caller
    assert not answerer._tasks


def test_a_future_of_a_function_that_is_not_marked_is_refused(answerer: Dispatcher) -> None:
    with pytest.raises(UsageError, match="async_execution"):
        read(answerer.handle(CALLER, call(1, promise), Later()))


def test_a_coroutine_whose_caller_gave_up_is_cancelled(answerer: Dispatcher) -> None:
    later = Later()
    assert answerer.handle(CALLER, call(1, forever), later) is None
    until(lambda: "began" in ran)
    assert answerer.handle(CALLER, Message(Kind.CANCEL, 2), later) is None
    other = WorkerHello("other", 2, "other life", "my life", Purpose.PIPE)
    assert answerer.handle(other, Message(Kind.CANCEL, 1), later) is None
    assert ran == ["began"]
    assert answerer.handle(CALLER, Message(Kind.CANCEL, 1), later) is None
    with pytest.raises(RuntimeError, match="CancelledError"):
        later.wait()
    assert ran == ["began", "ended"]


def test_a_coroutine_is_cancelled_even_if_the_cancellation_came_before_it_began(
    answerer: Dispatcher,
) -> None:
    """AN-3: a thread that reads what follows may overtake the one that begins it."""
    later = Later()
    for number in (1, 2):
        assert answerer.handle(CALLER, Message(Kind.CANCEL, number), later) is None
    assert read(answerer.handle(CALLER, call(1, add, 1, 2), later)) == 3
    assert answerer.handle(CALLER, call(2, forever), later) is None
    with pytest.raises(RuntimeError, match="CancelledError"):
        later.wait()


def test_cancelled_calls_do_not_pile_up(
    answerer: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.rpc.server.dispatcher.CANCELLED_MAX", 2)
    for number in range(5):
        answerer.handle(CALLER, Message(Kind.CANCEL, number), Later())
    assert [number for _, number in answerer._cancelled] == [3, 4]


def test_a_coroutine_that_begins_when_its_caller_is_gone_is_cancelled(answerer: Dispatcher) -> None:
    def begin(caller: WorkerHello, request: object) -> Future[None]:
        answerer.died(caller.incarnation)
        return answerer._loop.run(forever())

    later = Later()
    answerer.add_handler(UNSERVED, begin)
    assert answerer.handle(CALLER, Message(UNSERVED, 1, dump(5)[0]), later) is None
    with pytest.raises(RuntimeError, match="CancelledError"):
        later.wait()


def test_a_coroutine_whose_caller_is_gone_is_cancelled(answerer: Dispatcher) -> None:
    later, others = Later(), Later()
    other = WorkerHello("other", 2, "other life", "my life", Purpose.PIPE)
    assert answerer.handle(CALLER, call(1, forever), later) is None
    assert answerer.handle(other, call(1, forever), others) is None
    until(lambda: ran == ["began", "began"])
    answerer.died(CALLER.incarnation)
    with pytest.raises(RuntimeError, match="CancelledError"):
        later.wait()
    assert ran == ["began", "began", "ended"]
    answerer.died(other.incarnation)
    with pytest.raises(RuntimeError, match="CancelledError"):
        others.wait()


class Ticking:
    """A clock on which each look at it takes a while."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += self.step_s
        return self._now


def test_before_a_slow_function_the_thread_releases_what_it_holds(
    answerer: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SR-3."""
    clock = Ticking()
    released: list[None] = []
    monkeypatch.setattr(answerer, "_clock", clock)
    add_by_name: Any = encode_function(add)  # as an agent sends it

    def run() -> int:
        before = push_release(lambda: released.append(None))
        try:
            return int(read(answerer.handle(CALLER, call(1, add_by_name, 1, 2), Later())))
        finally:
            pop_release(before)

    assert [run(), run()] == [3, 3]
    assert not released
    clock.step_s = SLOW_S
    assert run() == 3
    assert not released  # it showed only then
    assert run() == 3
    assert len(released) == 1
    clock.step_s = 0.0
    while "add" in "".join(answerer._durations.slow):
        assert run() == 3
    released.clear()
    assert run() == 3
    assert not released


@named_by(0)
def run_named(name: str) -> str:
    return name


def test_functions_that_another_one_runs_are_measured_apart(
    answerer: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Ticking()
    monkeypatch.setattr(answerer, "_clock", clock)
    runner: Any = encode_function(run_named)
    clock.step_s = SLOW_S
    assert read(answerer.handle(CALLER, call(1, runner, "slow"), Later())) == "slow"
    clock.step_s = 0.0
    assert read(answerer.handle(CALLER, call(2, runner, "quick"), Later())) == "quick"
    assert list(answerer._durations.slow) == ["slow"]


def test_a_slow_function_is_refused_if_there_is_no_thread_for_the_calls_behind_it(
    answerer: Dispatcher,
) -> None:
    """SR-3."""
    name: Any = encode_function(add)
    answerer._durations.record(name, 1.0)
    before = push_release(lambda: False)
    try:
        with pytest.raises(Overloaded, match="1024 calls block at this worker, the most"):
            read(answerer.handle(CALLER, call(1, name, 1, 2), Later()))
    finally:
        pop_release(before)
    assert not ran


def test_a_note_without_a_handler_gets_no_reply(answerer: Dispatcher) -> None:
    assert answerer.handle(CALLER, Message(Kind.REPLY, 1), Later()) is None


# Once.


def test_a_request_that_comes_again_later_is_not_run_again(answerer: Dispatcher) -> None:
    later = Later()
    for _ in range(3):
        answer = answerer.handle(CALLER, call(1, add, 1, 2, once=True), later)
        assert (later.wait() if answer is None else read(answer)) == 3
    assert ran == [(1, 2)]
    assert read(answerer.handle(CALLER, call(1, add, 1, 2), later)) == 3  # not one of those
    assert len(ran) == 2


def test_a_request_that_comes_again_while_it_runs_waits_with_it(answerer: Dispatcher) -> None:
    first, second = Later(), Later()
    thread = threading.Thread(
        target=lambda: answerer.handle(CALLER, call(1, wait, once=True), first)
    )
    thread.start()
    until(lambda: bool(ran))
    assert answerer.handle(CALLER, call(1, wait, once=True), gone) is None
    assert answerer.handle(CALLER, call(1, wait, once=True), second) is None
    gate.set()
    assert first.wait() == second.wait() == 1
    thread.join()
    assert ran == ["wait"]
    assert len(first.answers) == len(second.answers) == 1


def test_a_request_that_answers_later_is_kept_too(answerer: Dispatcher) -> None:
    later = Later()
    assert answerer.handle(CALLER, call(1, marked, once=True), gone) is None
    assert answerer.handle(CALLER, call(1, marked, once=True), later) is None
    promised[0].set_result(4)
    assert later.wait() == 4
    assert read(answerer.handle(CALLER, call(1, marked, once=True), later)) == 4
    assert len(promised) == 1


def test_a_failure_is_kept_as_any_other_answer(answerer: Dispatcher) -> None:
    later = Later()
    assert answerer.handle(CALLER, call(1, add, 1, once=True), later) is None
    with pytest.raises(TypeError):
        later.wait()
    with pytest.raises(TypeError):
        read(answerer.handle(CALLER, call(1, add, 1, once=True), later))


def test_answers_are_forgotten_when_the_caller_has_them(answerer: Dispatcher) -> None:
    later = Later()
    for number in range(3):
        answerer.handle(CALLER, call(number, add, 1, 2, once=True), later)
    assert answerer.handle(CALLER, Message(Kind.ACKNOWLEDGE, 2), later) is None
    with pytest.raises(UsageError, match="answered long ago"):
        read(answerer.handle(CALLER, call(1, add, 1, 2, once=True), later))
    assert read(answerer.handle(CALLER, call(2, add, 1, 2, once=True), later)) == 3
    assert len(ran) == 3


@pytest.mark.parametrize("kind", [Kind.PYTHON_REMOTE_CALL, Kind.SCRIPT_REMOTE_CALL])
def test_a_creation_is_made_however_late_it_comes(answerer: Dispatcher, kind: Kind) -> None:
    """Its caller has given up, and said so; the reference it holds is to a value all the same."""
    message, later = creation(1, add, (1, 2), None, kind=kind, once=True), Later()
    answerer.handle(CALLER, encode_acknowledgement(2), later)
    for _ in range(2):  # the second one changes nothing
        assert read(answerer.handle(CALLER, message, later)) is None
        assert answerer._rrefs.value(TICKET.reference).wait(SOON) == 3
    assert len(ran) == 1


class Silent(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise ValueError


def unreadable(error: type[BaseException]) -> None:
    raise error("of another version")


class Unreadable:
    """What cannot be read where it arrives."""

    def __init__(self, error: type[BaseException] = ImportError) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return unreadable, (self.error,)


def note() -> None:
    ran.append("read")


class Noted:
    """Tells when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return note, ()


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("error", [ImportError, SystemExit, Silent])
def test_an5_a_waiting_caller_gets_the_error_of_a_creation_that_could_not_be_read(
    answerer: Dispatcher, once: bool, waits: bool, error: type[BaseException]
) -> None:
    rrefs, later = answerer._rrefs, Later()
    room = rrefs.value(TICKET.reference) if waits else None  # it has overtaken the creation
    answer = answerer.handle(CALLER, creation(1, add, (Unreadable(error),), None, once=once), later)
    answer = answer or later.answers[0]
    assert answer.kind is Kind.FAILURE
    room = room or rrefs.value(TICKET.reference)
    with pytest.raises(ReferenceFailed, match=rf"failed at .*me\): .*{error.__name__}"):
        room.wait(SOON)
    # It is counted, as any other: it goes when its caller lets it go.
    until(lambda: rrefs.counts()["forks"] == 1)
    rrefs.handle(Kind.RREF_USER_DELETE, TICKET.reference, TICKET.fork, CALLER.incarnation)
    until(lambda: not any(rrefs.counts().values()))
    assert ran == []


def test_an5_a_waiting_caller_gets_the_error_of_a_creation_that_was_refused(
    answerer: Dispatcher,
) -> None:
    later = Later()
    answerer._dedup = DedupTable(kept=0)
    room = answerer._rrefs.value(TICKET.reference)
    for _ in range(2):  # the second one changes nothing
        with pytest.raises(Overloaded, match="answers are not acknowledged"):
            read(answerer.handle(CALLER, creation(1, add, (1, 2), None, once=True), later))
    with pytest.raises(ReferenceFailed, match="failed at .*me.: .*answers are not acknowledged"):
        room.wait(SOON)
    assert answerer._rrefs.counts()["forks"] == 1
    answerer._dedup = DedupTable()
    # If the caller sends it again, since that answer was lost, it is read, but not run.
    again = creation(1, add, (Noted(), 2), None, once=True)
    assert answerer.handle(CALLER, again, later) is None
    assert later.wait() is None
    assert ran == ["read"]
    answerer._dedup = DedupTable(kept=0)
    cut = Message(Kind.PYTHON_REMOTE_CALL, 2, b"cut", once=True)  # its call is not known
    with pytest.raises(Overloaded):
        read(answerer.handle(CALLER, cut, later))
    assert answerer._rrefs.counts()["owners"] == 1


def test_too_many_answers_that_wait_are_refused(answerer: Dispatcher) -> None:
    later = Later()
    answerer._dedup = DedupTable(kept=3)
    for number in range(3):
        answerer.handle(CALLER, call(number, abs, 1, once=True), later)
    with pytest.raises(Overloaded, match="answers are not acknowledged"):
        read(answerer.handle(CALLER, call(3, abs, 1, once=True), later))


def test_too_large_answers_that_wait_are_refused(answerer: Dispatcher) -> None:
    later = Later()
    answerer._dedup = DedupTable(kept_bytes=1000)
    assert answerer.handle(CALLER, call(1, bytes, 2000, once=True), later) is None
    with pytest.raises(Overloaded, match="answers are not acknowledged"):
        read(answerer.handle(CALLER, call(2, abs, 1, once=True), later))
    answerer.handle(CALLER, encode_acknowledgement(2), later)
    assert answerer.handle(CALLER, call(3, abs, 1, once=True), later) is None


# Which callers are served.


def test_a_hello_for_another_incarnation_is_refused(answerer: Dispatcher) -> None:
    answerer.check_hello(CALLER)
    with pytest.raises(PeerLost, match="another one has its name"):
        answerer.check_hello(WorkerHello("you", 1, "your life", "an earlier life", Purpose.PIPE))


def test_a_caller_that_was_given_up_is_not_served_again(answerer: Dispatcher) -> None:
    later = Later()
    answerer.handle(CALLER, call(1, add, 1, 2, once=True), later)
    answerer.died(CALLER.incarnation)
    with pytest.raises(PeerLost, match="given up"):
        read(answerer.handle(CALLER, call(1, add, 1, 2, once=True), later))
    with pytest.raises(PeerLost, match="given up"):
        answerer.check_hello(CALLER)
    assert ran == [(1, 2)]
    new = WorkerHello("you", 1, "a new life", "my life", Purpose.PIPE)
    answerer.check_hello(new)
    assert read(answerer.handle(new, call(1, add, 1, 2), later)) == 3


def test_an2_no_call_of_a_caller_that_is_being_given_up_runs_again(answerer: Dispatcher) -> None:
    answerer.handle(CALLER, call(1, add, 1, 2, once=True), Later())
    lock = answerer._lock

    class Late:
        """A lock that is had only after the caller has been given up."""

        def __enter__(self) -> None:
            answerer._lock = lock
            answerer.died(CALLER.incarnation)
            lock.acquire()

        def __exit__(self, *exc: object) -> None:
            lock.release()

    answerer._lock = cast("threading.Lock", Late())
    with pytest.raises(PeerLost, match="given up"):
        read(answerer.handle(CALLER, call(1, add, 1, 2, once=True), Later()))
    assert ran == [(1, 2)]
    answerer.handle(CALLER, encode_acknowledgement(2), Later())
    assert not answerer._dedup._callers  # nothing is kept of this caller


def test_a_caller_that_was_given_up_before_we_joined_is_not_served(answerer: Dispatcher) -> None:
    with pytest.raises(PeerLost, match="given up"):  # AN-4: the directory does not know this caller
        answerer.check_hello(WorkerHello("you", 1, "a stale life", "my life", Purpose.PIPE))


def test_a_caller_that_may_be_stale_may_try_again(
    answerer: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(incarnation: str) -> bool:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(answerer, "_knows", unknown)
    with pytest.raises(ConnectionError, match="you is not known, and cannot be: the store") as why:
        answerer.check_hello(CALLER)
    assert not isinstance(why.value, HoldfastError)  # which would be a refusal


def test_the_list_of_callers_that_were_given_up_is_bounded(
    answerer: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.rpc.server.dispatcher.DEAD_MAX", 3)
    for number in range(10):
        answerer.died(str(number))
    assert list(answerer._dead) == ["7", "8", "9"]
