"""Pipes: every call ends exactly once, whoever reads, waits, leaves, or breaks things."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import Overloaded, PeerLost, UsageError
from holdfast.rpc.codec import BUFFERS_MAX, HEADER
from holdfast.rpc.future import Future
from holdfast.rpc.link import Link
from holdfast.rpc.messages import Buffer, Kind, Message
from holdfast.rpc.pipe import NEVER, Pipe, Reply
from holdfast.rpc.readers import Readers

SOON = 20.0


class World:
    """A pipe, the reader of last resort, and the link at the other end, which tests answer by."""

    def __init__(self) -> None:
        self.readers = Readers("test-read")
        self.socks: list[socket.socket] = []
        self.pipe, self.there, self.raw = self.make()

    def make(self, calls_max: int = 100, bytes_max: int = 1 << 20) -> tuple[Pipe, Link, Link]:
        one, other = socket.socketpair()
        self.socks += (one, other)
        link = Link(one)
        pipe = Pipe(link, self.readers, lost, calls_max=calls_max, bytes_max=bytes_max)
        return pipe, Link(other), link

    def close(self) -> None:
        self.pipe.close(PeerLost("the test is over"))
        self.readers.close()
        for sock in self.socks:
            sock.close()


def lost(error: OSError) -> Exception:
    return PeerLost(f"lost: {error}")


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


class Heard:
    """A reply that remembers what it heard, and can be waited for by drivers and others."""

    def __init__(self) -> None:
        self.future: Future[Message] = Future()
        self.times = 0

    def __call__(self, answer: Message | Exception) -> None:
        self.times += 1
        if isinstance(answer, Message):
            self.future.set_result(answer)
        else:
            self.future.set_exception(answer)

    def wait(self) -> Message:
        """Wait without driving."""
        return self.future.wait(SOON)

    def driven(self, pipe: Pipe) -> Message:
        pipe.drive(self.future.done, Deadline.after(SOON))
        assert self.future.done() or pipe.lost is not None
        return self.future.wait(SOON)  # who ends a pipe tells everybody, but not all at once

    def fails(self, pipe: Pipe) -> None:
        with pytest.raises(PeerLost):
            self.driven(pipe)


def request(call: int, body: bytes = b"", *buffers: bytes) -> Message:
    return Message(Kind.PYTHON_CALL, call, body, list(buffers))


def reply(call: int, body: Buffer = b"") -> Message:
    return Message(Kind.REPLY, call, body)


def beside(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_who_waits_reads_its_own_answer(world: World) -> None:
    heard = Heard()
    world.pipe.post(request(1, b"ask"), heard)
    assert world.there.receive().body == b"ask"
    world.there.send(reply(1, b"tell"))
    assert heard.driven(world.pipe).body == b"tell"
    assert world.pipe.under_way == (0, 0)
    assert not world.pipe.busy


def test_answers_come_in_any_order_and_without_anybody_waiting(world: World) -> None:
    heard = [Heard() for _ in range(5)]
    for number, each in enumerate(heard):
        world.pipe.post(request(number), each)
    asked = {world.there.receive().call for _ in heard}  # put off ones too
    assert asked == set(range(5))
    world.there.send_all([reply(number, bytes([number])) for number in (3, 1, 4, 0, 2)])
    assert [each.wait().body for each in heard] == [bytes([n]) for n in range(5)]
    assert {each.times for each in heard} == {1}


def test_who_has_waited_once_need_not_come_again(world: World) -> None:
    first = Heard()
    world.pipe.post(request(1), first)
    world.there.send(reply(world.there.receive().call))
    first.driven(world.pipe)
    for number in range(2, 6):  # the reader of last resort holds back, but not for ever
        heard = Heard()
        world.pipe.post(request(number), heard)
        world.there.send(reply(world.there.receive().call))
        assert heard.wait().call == number


def test_a_waiter_that_leaves_does_not_leave_others_unread(world: World) -> None:
    # One reads, another one waits its turn; both leave at once, and a third call has no waiter.
    for number in range(0, 300, 3):
        one, two, three = Heard(), Heard(), Heard()
        for offset, each in enumerate((one, two, three)):
            world.pipe.post(request(number + offset), each)
        waiters = [beside(lambda each=each: each.driven(world.pipe)) for each in (one, two)]  # type: ignore[misc]
        for _ in range(3):
            world.there.receive()
        world.there.send_all([reply(number), reply(number + 1)])
        for waiter in waiters:
            waiter.join()
        world.there.send(reply(number + 2))
        assert three.wait().call == number + 2


def test_many_threads_wait_for_calls_of_their_own(world: World) -> None:
    stop = Message(Kind.CANCEL, 0)

    def serve() -> None:
        while (message := world.there.receive()).kind is not stop.kind:
            world.there.send(reply(message.call, message.body))

    def call(first: int) -> None:
        for number in range(first, first + 100):
            heard = Heard()
            world.pipe.post(request(number, b"%d" % number), heard)
            assert heard.driven(world.pipe).body == b"%d" % number
            done.append(number)

    done: list[int] = []
    server = beside(serve)
    callers = [beside(lambda first=first: call(first)) for first in range(0, 800, 100)]  # type: ignore[misc]
    for caller in callers:
        caller.join()
    world.pipe.note(stop)
    server.join()
    assert sorted(done) == list(range(800))


def test_a_callback_may_wait_for_another_call(world: World) -> None:
    inner, outer = Heard(), Heard()

    def ask_again(answer: Message | Exception) -> None:
        world.pipe.post(request(2), inner)
        inner.driven(world.pipe)
        outer(answer)

    def serve() -> None:
        for _ in range(2):
            world.there.send(reply(world.there.receive().call))

    for driven in (True, False):
        inner, outer = Heard(), Heard()
        server = beside(serve)
        world.pipe.post(request(1), ask_again)
        assert (outer.driven(world.pipe) if driven else outer.wait()).call == 1
        assert inner.times == outer.times == 1
        server.join()


@pytest.mark.parametrize("driven", [False, True])
def test_deadlines_pass_even_if_the_waiter_has_none(world: World, driven: bool) -> None:
    heard, other = Heard(), Heard()
    world.pipe.post(request(1), heard, SYSTEM_CLOCK.monotonic() + 0.02)
    world.pipe.post(request(2), other)
    with pytest.raises(TimeoutError):
        heard.driven(world.pipe) if driven else heard.wait()
    assert world.pipe.under_way[0] == 1
    world.there.send_all([reply(1, b"too late"), reply(2)])
    assert other.wait().call == 2
    assert heard.times == 1


def test_a_waiter_leaves_at_its_own_deadline(world: World) -> None:
    heard = Heard()
    world.pipe.post(request(1), heard)
    world.pipe.drive(heard.future.done, Deadline.after(0.01))
    assert heard.times == 0
    world.there.send(reply(1))
    assert heard.wait().call == 1


def test_who_looks_before_it_sleeps_reads_its_answer_and_leaves_at_its_deadline(
    world: World,
) -> None:
    heard, never = Heard(), Heard()
    eager = world.pipe._eager
    eager.now = True
    world.pipe.post(request(1), heard)
    world.there.receive()
    world.there.send(reply(1, b"tell"))
    assert heard.driven(world.pipe).body == b"tell"
    assert eager.now  # it was worth it
    world.pipe.post(request(2), never)
    world.pipe.drive(never.future.done, Deadline.after(0.05))
    assert not never.future.done()
    assert not eager.now
    world.there.send(reply(2))
    never.driven(world.pipe)


def test_a_waiter_notices_what_is_completed_elsewhere(world: World) -> None:
    done = threading.Event()
    world.pipe.post(request(1), Heard())
    waiter = beside(lambda: world.pipe.drive(done.is_set, Deadline.after(SOON)))
    done.set()
    waiter.join()


def test_the_end_of_the_connection_is_told_to_all_and_the_link_is_left_to_its_owner(
    world: World,
) -> None:
    heard = [Heard() for _ in range(3)]
    for number, each in enumerate(heard):
        world.pipe.post(request(number), each)
    waiter = beside(lambda: heard[0].fails(world.pipe))
    world.there.close()
    for each in heard:
        with pytest.raises(PeerLost, match="lost: Connection (closed|reset) by peer"):
            each.wait()
    waiter.join()
    late = Heard()
    world.pipe.post(request(9), late)
    assert world.pipe.lost is not None
    with pytest.raises(PeerLost):
        late.wait()
    world.pipe.note(request(10))  # for nobody
    world.pipe.drive(lambda: False, Deadline.after(SOON))  # returns at once
    assert {each.times for each in (*heard, late)} == {1}
    assert world.raw.fileno() >= 0


def test_closing_tells_what_it_was_given_and_wakes_who_reads(world: World) -> None:
    heard = Heard()
    world.pipe.post(request(1), heard)
    waiter = beside(lambda: heard.fails(world.pipe))
    why = PeerLost("given up")
    world.pipe.close(why)
    world.pipe.close(PeerLost("again"))
    waiter.join()
    assert heard.future.exception() is why
    assert world.pipe.lost is why


def test_nonsense_from_the_peer_ends_the_pipe_and_not_the_reader(world: World) -> None:
    heard = Heard()
    world.pipe.post(request(1), heard)
    world.socks[1].sendall(HEADER.pack(200, 0, 0, 0, 0, 0))
    with pytest.raises(PeerLost, match="out of bounds"):
        heard.wait()
    pipe, there, _ = world.make()
    other = Heard()
    pipe.post(request(1), other)
    there.send(reply(1))
    assert other.wait().call == 1
    pipe.close(PeerLost("the test is over"))


@pytest.mark.parametrize("error", [ValueError("a bug"), UsageError("complete already")])
def test_a_reply_that_raises_harms_nobody_else(
    world: World, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def bad(answer: Message | Exception) -> None:
        raise error

    heard = Heard()
    world.pipe.post(request(1), bad)
    world.pipe.post(request(2), heard)
    world.there.send_all([reply(1), reply(2)])
    assert heard.wait().call == 2
    assert str(error) in caplog.text


def test_a_peer_that_does_not_read_blocks_neither_posting_nor_the_calls_to_others(
    world: World,
) -> None:
    stuck, _, _ = world.make(bytes_max=1 << 30)
    big = bytes(1 << 20)
    heard = [Heard() for _ in range(20)]
    for number, each in enumerate(heard):
        stuck.post(request(number, b"", big), each, SYSTEM_CLOCK.monotonic() + 0.05)
    assert stuck.blocked
    assert not stuck.puts_off
    for number in range(20):
        other = Heard()
        world.pipe.post(request(number), other)
        world.there.send(reply(world.there.receive().call))
        assert other.wait().call == number
    for each in heard:
        with pytest.raises(TimeoutError):
            each.wait()
    stuck.drive(lambda: False, Deadline.after(0.01))
    stuck.close(PeerLost("the test is over"))


@pytest.mark.parametrize("driven", [False, True])
def test_a_peer_that_reads_late_gets_everything(world: World, driven: bool) -> None:
    pipe, there, _ = world.make(bytes_max=1 << 30)
    big = bytes(range(256)) * 4096
    heard = [Heard() for _ in range(8)]
    for number, each in enumerate(heard):
        pipe.post(request(number, b"%d" % number, big), each)
    assert pipe.blocked

    def serve() -> None:
        # Answers as large as the questions, before the next question is read.
        for _ in heard:
            message = there.receive()
            assert bytes(message.buffers[0]) == big
            there.send(Message(Kind.REPLY, message.call, message.body, message.buffers))

    server = beside(serve)
    for number, each in enumerate(heard):
        answer = each.driven(pipe) if driven else each.wait()
        assert answer.body == b"%d" % number
        assert bytes(answer.buffers[0]) == big
    server.join()
    deadline = Deadline.after(SOON)
    while pipe.blocked:  # who has sent the last of it notes that a moment later
        assert not deadline.passed()
        SYSTEM_CLOCK.sleep(0.001)
    pipe.close(PeerLost("the test is over"))


def test_an_answer_of_which_half_has_come_holds_up_nobody(world: World) -> None:
    slow, there, _ = world.make()
    half = Heard()
    slow.post(request(1), half)
    there.receive()
    world.socks[-1].sendall(HEADER.pack(Kind.REPLY, 0, 0, 0, 1, 100_000) + bytes(50_000))
    for number in range(10):
        other = Heard()
        world.pipe.post(request(number), other)
        world.there.send(reply(world.there.receive().call))
        assert other.wait().call == number
    slow.drive(half.future.done, Deadline.after(0.01))  # ends, though the rest has not come
    world.socks[-1].sendall(bytes(50_000))
    assert len(half.wait().body) == 100_000
    slow.close(PeerLost("the test is over"))


def test_too_many_calls_are_refused_and_counted_exactly(world: World) -> None:
    pipe, there, _ = world.make(calls_max=3, bytes_max=1000)
    heard = [Heard() for _ in range(3)]
    for number, each in enumerate(heard):
        pipe.post(request(number, b"x" * 10), each)
    assert pipe.under_way == (3, 30)
    with pytest.raises(Overloaded, match="3 calls and 30 bytes are under way"):
        pipe.post(request(9), Heard())
    there.send(reply(1))
    assert heard[1].wait()
    assert pipe.under_way == (2, 20)
    with pytest.raises(Overloaded):
        pipe.post(request(10, b"", bytes(981)), Heard())
    last = Heard()
    pipe.post(request(10, b"", bytes(980)), last)
    assert pipe.under_way == (3, 1000)
    for number in (0, 2, 10):
        there.send(reply(number))
    for each in (*heard, last):
        each.wait()
    huge = Heard()
    pipe.post(request(11, b"", bytes(5000)), huge)  # alone, it may be larger
    with pytest.raises(Overloaded):
        pipe.post(request(12, b"x"), Heard())
    pipe.close(PeerLost("the test is over"))
    assert pipe.under_way == (0, 0)


def test_what_cannot_be_sent_is_refused_when_it_is_posted(world: World) -> None:
    with pytest.raises(UsageError, match="buffers"):
        world.pipe.post(request(1, b"", *[b""] * (BUFFERS_MAX + 1)), Heard())
    assert not world.pipe.busy
    heard = Heard()
    world.pipe.post(request(2), heard)
    world.there.send(reply(world.there.receive().call))
    assert heard.wait().call == 2


def test_a_call_that_is_sent_twice_answers_both(world: World) -> None:
    first, second = Heard(), Heard()
    world.pipe.post(request(1, b"abc"), first)
    world.pipe.post(request(1, b"abc"), second)
    assert world.pipe.under_way == (1, 6)
    assert [world.there.receive().call for _ in range(2)] == [1, 1]
    world.there.send_all([reply(1, b"a"), reply(1, b"b")])
    assert first.wait() == second.wait()
    assert first.times == second.times == 1
    assert world.pipe.under_way == (0, 0)


def test_what_is_put_off_is_sent_though_nothing_moves(world: World) -> None:
    for number in range(50):  # the first one is never answered
        world.pipe.post(request(number), Heard())
        assert world.there.receive().call == number


def test_one_that_follows_many_is_sent_though_nobody_waits_and_nothing_moves(world: World) -> None:
    many = [Heard() for _ in range(64)]
    for number, each in enumerate(many):
        world.pipe.post(request(number), each)
    for _ in many:
        world.there.receive()
    world.there.send_all([reply(number) for number in range(len(many))])
    for each in many:
        each.driven(world.pipe)
    for number in range(100, 103):
        heard = Heard()
        world.pipe.post(request(number), heard)
        assert world.there.receive().call == number
        world.there.send(reply(number))
        assert heard.wait().call == number


def test_an_answer_to_a_large_request_is_read_though_nobody_waits(world: World) -> None:
    heard = Heard()
    server = beside(lambda: world.there.send(reply(world.there.receive().call)))
    world.pipe.post(request(1, bytes(300_000)), heard)
    assert heard.wait().call == 1
    server.join()


def test_bytes_are_counted_exactly_whoever_completes(world: World) -> None:
    size, times = 300_000, 20
    left = threading.Semaphore(0)

    def again(number: int) -> Reply:
        def hear(answer: Message | Exception) -> None:
            assert isinstance(answer, Message)
            if number < times:  # three of them are all that may be under way
                world.pipe.post(request(number + 3, bytes(size)), again(number + 3))
            left.release()

        return hear

    def serve() -> None:
        for _ in range(times + 3):
            world.there.send(reply(world.there.receive().call))

    server = beside(serve)
    for number in range(3):
        world.pipe.post(request(number, bytes(size)), again(number))
    for _ in range(times + 3):
        assert left.acquire(timeout=SOON)
    server.join()
    assert world.pipe.under_way == (0, 0)


def test_an_interrupt_within_reading_ends_the_pipe(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, other = Heard(), Heard()
    world.pipe.post(request(1), heard)

    def interrupt() -> Message | None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return None  # to the reader of last resort, whom no signal interrupts

    monkeypatch.setattr(world.raw, "advance", interrupt)
    world.there.send(reply(1))
    with pytest.raises(KeyboardInterrupt):
        heard.driven(world.pipe)
    with pytest.raises(PeerLost, match="interrupted"):
        heard.wait()
    world.pipe.post(request(2), other)
    with pytest.raises(PeerLost):
        other.wait()


def test_never_is_no_deadline(world: World) -> None:
    heard: Reply = Heard()
    world.pipe.post(request(1), heard, NEVER)
    world.pipe.expire(1e18)
    assert world.pipe.busy


def test_an_interrupt_within_sending_ends_the_pipe(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()

    def interrupt(views: list[memoryview]) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(world.raw, "send_some", interrupt)
    with pytest.raises(KeyboardInterrupt):
        world.pipe.post(request(1), heard)
    with pytest.raises(PeerLost, match="sending was interrupted"):
        heard.wait()
