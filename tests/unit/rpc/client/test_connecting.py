"""Calls that wait for a pipe: each ends, and none is lost when the pipe is there."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import Overloaded, PeerLost
from holdfast.rpc.client import connecting as opening_module
from holdfast.rpc.client.background_reader import BackgroundReader
from holdfast.rpc.client.calls import OpenCalls
from holdfast.rpc.client.connecting import PendingPipe
from holdfast.rpc.client.pipe import Pipe
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.messages import NEVER, Kind, Message

SOON = 20.0


class World:
    """A pending pipe whose outcome the test decides, and the other end of the pipe."""

    def __init__(self) -> None:
        self.background = BackgroundReader("test-read")
        self.one, self.other = socket.socketpair()
        self.there = Connection(self.other)
        self.pipe = Pipe(Connection(self.one), self.background, lambda error: PeerLost(str(error)))
        self.outcome: queue.SimpleQueue[Pipe | Exception] = queue.SimpleQueue()
        self.pending = PendingPipe("test-open", self.open, self.background)
        self.pending.start()

    def open(self) -> Pipe:
        outcome = self.outcome.get(timeout=SOON)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None:
        self.outcome.put(PeerLost("the test is over"))
        self.pending._thread.join()
        self.pipe.close(PeerLost("the test is over"))
        self.background.close()
        self.one.close()
        self.other.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


class Heard:
    """What a call is told."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()
        self.answer: Message | Exception | None = None

    def __call__(self, answer: Message | Exception) -> None:
        self.answer = answer
        self.told.put(answer)

    def wait(self) -> Message | Exception:
        answer = self.told.get(timeout=SOON)
        assert self.told.empty()
        return answer


def ask(call: int, body: bytes = b"") -> Message:
    return Message(Kind.PYTHON_CALL, call, body)


def test_op2_calls_are_sent_when_the_pipe_is_open_and_a_waiter_drives_it(world: World) -> None:
    heard = [Heard() for _ in range(3)]
    for number, each in enumerate(heard):
        assert world.pending.post(ask(number), each, NEVER)
    assert world.pending.waiting == 3

    def answer() -> None:
        world.outcome.put(world.pipe)
        for _ in heard:
            world.there.send(Message(Kind.REPLY, world.there.receive().call))

    thread = threading.Thread(target=answer)
    thread.start()
    world.pending.drive(
        lambda: all(each.answer is not None for each in heard), Deadline.after(SOON)
    )
    thread.join()
    assert [each.wait() for each in heard] == [Message(Kind.REPLY, n) for n in range(3)]
    assert world.pending.over
    assert world.pending.waiting == 0
    assert not world.pending.post(ask(9), Heard(), NEVER)


def test_notes_are_sent_when_the_pipe_is_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening_module, "CALLS_MAX", 2)
    assert all(world.pending.note(Message(Kind.CANCEL, number)) for number in (7, 8, 9))
    world.outcome.put(world.pipe)
    assert [world.there.receive() for _ in range(2)] == [Message(Kind.CANCEL, n) for n in (7, 8)]
    assert not world.pending.note(Message(Kind.CANCEL, 10))


def test_op2_all_calls_fail_with_the_reason_why_there_is_no_pipe(world: World) -> None:
    heard = [Heard() for _ in range(3)]
    for number, each in enumerate(heard):
        world.pending.post(ask(number), each, NEVER)
    error = PeerLost("no peer is there")
    world.outcome.put(error)
    world.pending.drive(lambda: False, Deadline.after(SOON))
    assert [each.wait() for each in heard] == [error] * 3
    assert not world.pending.post(ask(9), Heard(), NEVER)


def test_an_unexpected_error_fails_all_waiting_calls(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(answer: Message | Exception) -> None:
        raise IndexError("planted")

    heard = Heard()
    world.pending.post(ask(1), fail, NEVER)
    world.pending.post(ask(2), heard, NEVER)
    error = MemoryError("there is none")
    world.outcome.put(error)
    assert heard.wait() is error
    assert "IndexError: planted" in caplog.text


def test_op1_a_call_expires_even_if_nothing_else_happens(world: World) -> None:
    late, other = Heard(), Heard()
    world.pending.post(ask(1), late, SYSTEM_CLOCK.monotonic() + 0.01)
    world.pending.post(ask(2), other, NEVER)
    assert isinstance(late.wait(), TimeoutError)
    world.pending.drive(lambda: late.answer is not None, Deadline.after(SOON))
    world.pending.drive(lambda: False, Deadline.after(0.01))  # ends, though there is no pipe
    assert other.answer is None
    world.outcome.put(world.pipe)
    assert world.there.receive().call == 2  # and the first one is not sent any more


def test_op2_closing_fails_all_calls_and_a_pipe_that_is_opened_later_is_not_used(
    world: World,
) -> None:
    heard, lost = Heard(), PeerLost("given up")
    world.pending.post(ask(1), heard, NEVER)
    world.pending.close(lost)
    world.pending.close(PeerLost("again"))
    assert heard.wait() is lost
    world.outcome.put(world.pipe)
    world.pending._thread.join()
    assert not world.pipe.busy


def test_op3_a_call_beyond_the_limit_is_refused(world: World) -> None:
    world.pending._calls = OpenCalls("wait", calls_max=1)
    assert world.pending.post(ask(1, bytes(20)), Heard(), NEVER)
    with pytest.raises(Overloaded, match="1 calls and 20 bytes wait"):
        world.pending.post(ask(2, b"x"), Heard(), NEVER)


def test_op3_an_expired_call_counts_no_more(world: World) -> None:
    world.pending._calls = OpenCalls("wait", bytes_max=10)
    late = Heard()
    world.pending.post(ask(1, bytes(10)), late, SYSTEM_CLOCK.monotonic() + 0.01)
    assert isinstance(late.wait(), TimeoutError)
    assert world.pending.post(ask(2, b"x"), Heard(), NEVER)
    assert world.pending.post(ask(3, b"x"), Heard(), NEVER)


def test_op2_a_later_try_of_a_call_replaces_the_first(world: World) -> None:
    first, second = Heard(), Heard()
    for heard in (first, second):
        assert world.pending.post(ask(1), heard, NEVER)
    assert world.pending.waiting == 1
    world.outcome.put(PeerLost("refused"))
    assert str(second.wait()) == "refused"
    assert first.answer is None


def test_a_call_that_the_pipe_refuses_fails(world: World) -> None:
    tight = Pipe(
        world.pipe._connection, world.background, lambda error: PeerLost(str(error)), calls_max=1
    )
    first, second = Heard(), Heard()
    world.pending.post(ask(1), first, NEVER)
    world.pending.post(ask(2), second, NEVER)
    world.outcome.put(tight)
    assert isinstance(second.wait(), Overloaded)
    tight.close(PeerLost("the test is over"))
    assert isinstance(first.wait(), PeerLost)


def test_op4_a_call_that_is_given_up_is_not_passed_on(world: World) -> None:
    heard = [Heard(), Heard()]
    for call, each in enumerate(heard):
        assert world.pending.post(Message(Kind.PYTHON_CALL, call + 1), each, NEVER)
    world.pending.give_up(1)
    assert world.pending.waiting == 1
    world.outcome.put(world.pipe)
    assert world.there.receive().call == 2
    world.there.send(Message(Kind.REPLY, 2))
    assert isinstance(heard[1].wait(), Message)
    assert heard[0].answer is None
    world.pending.give_up(2)


def test_op4_a_call_that_is_given_up_while_it_is_passed_on_is_given_up_by_the_pipe(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on, post = threading.Event(), threading.Event(), world.pipe.post

    def slow_post(*args: Any) -> None:
        entered.set()
        assert go_on.wait(SOON)
        post(*args)

    monkeypatch.setattr(world.pipe, "post", slow_post)
    assert world.pending.post(Message(Kind.PYTHON_CALL, 7), Heard(), NEVER)
    world.outcome.put(world.pipe)
    assert entered.wait(SOON)
    giving_up = threading.Thread(target=world.pending.give_up, args=(7,))
    giving_up.start()
    giving_up.join(0.02)
    assert giving_up.is_alive()
    go_on.set()
    giving_up.join()
    assert world.pipe.under_way == (0, 0)
