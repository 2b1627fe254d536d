"""Pipes: every call ends exactly once, whichever thread reads, waits, leaves or fails."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import Overloaded, PeerLost, UsageError
from holdfast.rpc.client.blocking import within
from holdfast.rpc.client.pipe import Pipe, Reply
from holdfast.rpc.wire.codec import BUFFERS_MAX, HEADER
from holdfast.rpc.wire.messages import NEVER, Buffer, Kind, Message
from tests.unit.rpc.pipe_world import SOON, Heard, World, beside, reply, request, serve, then
from tests.waiting import until


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


def test_a_waiting_thread_reads_its_own_answer(world: World) -> None:
    heard = Heard()
    world.pipe.post(request(1, b"ask"), heard)
    assert world.there.receive().body == b"ask"
    world.there.send(reply(1, b"tell"))
    assert heard.driven(world.pipe).body == b"tell"
    assert world.pipe.under_way == (0, 0)
    assert not world.pipe.busy


def test_pi1_answers_come_in_any_order_and_without_a_waiting_thread(world: World) -> None:
    heard = [Heard() for _ in range(5)]
    for number, each in enumerate(heard):
        world.pipe.post(request(number), each)
    asked = {world.there.receive().call for _ in heard}  # put off ones too
    assert asked == set(range(5))
    world.there.send_all([reply(number, bytes([number])) for number in (3, 1, 4, 0, 2)])
    assert [each.wait().body for each in heard] == [bytes([n]) for n in range(5)]
    assert {each.times for each in heard} == {1}


def test_a_call_whose_thread_waited_once_is_answered_without_it(world: World) -> None:
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


def test_pi2_many_threads_wait_for_calls_of_their_own(world: World) -> None:
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
    world.pipe.transmit(stop)
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


def test_pi5_hundreds_of_callbacks_may_wait_for_other_calls(world: World) -> None:
    """One within the other they would be too many for the stack."""
    pipe, there, _ = world.make(calls_max=2000)
    many = 400
    inner, outer = [Heard() for _ in range(many)], [Heard() for _ in range(many)]

    def ask_again(number: int, answer: Message | Exception) -> None:
        pipe.post(request(many + number), inner[number])
        inner[number].driven(pipe)
        outer[number](answer)

    for number in range(many):
        pipe.post(request(number), partial(ask_again, number))
    server = beside(lambda: serve(there, 2 * many))
    assert [one.driven(pipe).call for one in outer] == list(range(many))
    assert {one.times for one in inner + outer} == {1}
    server.join()
    pipe.close(PeerLost("the test is over"))
    assert not within


@pytest.mark.parametrize("driven", [False, True])
def test_pi1_deadlines_pass_even_if_the_waiter_has_none(world: World, driven: bool) -> None:
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


def test_a_spinning_thread_reads_its_answer_and_leaves_at_its_deadline(
    world: World,
) -> None:
    heard, never = Heard(), Heard()
    eager = world.raw._spin
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


def test_a_waiting_thread_notices_that_another_thread_completed_its_call(world: World) -> None:
    done = threading.Event()
    world.pipe.post(request(1), Heard())
    waiter = beside(lambda: world.pipe.drive(done.is_set, Deadline.after(SOON)))
    done.set()
    waiter.join()


def test_pi1_the_end_of_the_connection_fails_all_calls_and_its_owner_closes_it(
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
    world.pipe.transmit(request(10))  # without a receiver
    world.pipe.drive(lambda: False, Deadline.after(SOON))  # returns at once
    assert {each.times for each in (*heard, late)} == {1}
    assert world.raw.fileno() >= 0


def test_closing_fails_the_calls_and_wakes_the_reader(world: World) -> None:
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
def test_a_reply_callback_that_raises_harms_no_other_call(
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
    until(lambda: not pipe.blocked)  # the thread that sent the last of it notes that a moment later
    pipe.close(PeerLost("the test is over"))


def test_half_an_answer_delays_no_other_call(world: World) -> None:
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


def test_pi4_too_many_calls_are_refused_and_counted_exactly(world: World) -> None:
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


def test_a_message_that_cannot_be_sent_is_refused_when_it_is_posted(world: World) -> None:
    with pytest.raises(UsageError, match="buffers"):
        world.pipe.post(request(1, b"", *[b""] * (BUFFERS_MAX + 1)), Heard())
    assert not world.pipe.busy
    heard = Heard()
    world.pipe.post(request(2), heard)
    world.there.send(reply(world.there.receive().call))
    assert heard.wait().call == 2


def test_the_reply_completes_the_later_try_of_a_call(world: World) -> None:
    first, second = Heard(), Heard()
    world.pipe.post(request(1, b"abc"), first)
    world.pipe.post(request(1, b"abc"), second)
    assert world.pipe.under_way == (1, 3)
    assert [world.there.receive().call for _ in range(2)] == [1, 1]
    world.there.send_all([reply(1, b"a"), reply(1, b"b")])
    assert second.wait() == reply(1, b"a")
    assert (first.times, second.times) == (0, 1)
    assert world.pipe.under_way == (0, 0)


def test_pi3_a_batched_message_is_sent_even_if_nothing_else_happens(world: World) -> None:
    for number in range(50):  # the first one is never answered
        world.pipe.post(request(number), Heard())
        assert world.there.receive().call == number


def test_pi3_a_call_that_follows_many_is_sent_even_if_no_thread_waits(
    world: World,
) -> None:
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


def test_the_reply_to_a_large_request_is_read_even_if_no_thread_waits(world: World) -> None:
    heard = Heard()
    server = beside(lambda: world.there.send(reply(world.there.receive().call)))
    world.pipe.post(request(1, bytes(300_000)), heard)
    assert heard.wait().call == 1
    server.join()


def test_pi4_bytes_are_counted_exactly_by_whichever_thread_completes(world: World) -> None:
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

    def interrupt(*args: float) -> Message | None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return None  # to the background reader, which no signal interrupts

    monkeypatch.setattr(world.raw, "advance", interrupt)
    monkeypatch.setattr(world.raw, "advance_within", interrupt)
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


def test_callbacks_of_two_workers_may_wait_for_each_others_workers(world: World) -> None:
    """PI-5: each is told by the thread that reads the pipe that the other one needs."""
    other, there, _ = world.make()
    both = threading.Barrier(2)

    def cross(pipe: Pipe, across: Pipe) -> None:
        inner, outer = Heard(), Heard()

        def ask() -> None:
            both.wait(SOON)
            across.post(request(2), inner)
            inner.asked(across)

        pipe.post(request(1), then(outer, ask))
        done.append((outer.asked(pipe).call, inner.times))

    done: list[tuple[int, int]] = []
    threads = [
        beside(lambda: serve(world.there, 2)),
        beside(lambda: serve(there, 2)),
        beside(lambda: cross(world.pipe, other)),
        beside(lambda: cross(other, world.pipe)),
    ]
    for thread in threads:
        thread.join()
    assert done == [(1, 1), (1, 1)]
    other.close(PeerLost("the test is over"))


@pytest.mark.parametrize("buffers", [[], [b"apart"]])
@pytest.mark.parametrize("driven", [False, True])
def test_replies_that_came_together_are_delivered_even_if_the_first_callback_waits(
    world: World, driven: bool, buffers: list[Buffer]
) -> None:
    """PI-5: for something that only the next answer brings."""
    first, second = Heard(), Heard()
    world.pipe.post(request(1), then(first, second.wait))
    world.pipe.post(request(2), second)
    for _ in range(2):
        world.there.receive()
    world.there.send_all([reply(1), Message(Kind.REPLY, 2, b"", buffers)])
    assert (first.asked(world.pipe) if driven else first.wait()).call == 1
    assert second.times == 1


@pytest.mark.parametrize("driven", [False, True])
def test_calls_that_end_together_may_wait_for_each_other(world: World, driven: bool) -> None:
    """PI-5: the time of both is up, and one waits for the other when it is told so."""
    at = SYSTEM_CLOCK.monotonic() + 0.02
    first, second = Heard(), Heard()

    def wait_for_the_other() -> None:
        with pytest.raises(TimeoutError):
            second.asked(world.pipe)

    world.pipe.post(request(1), then(first, wait_for_the_other), at)
    world.pipe.post(request(2), second, at)
    with pytest.raises(TimeoutError):
        first.asked(world.pipe) if driven else first.wait()
    assert first.times == second.times == 1
    world.pipe.post(request(3), Heard(), NEVER)
    assert world.pipe.under_way[0] == 1


@pytest.mark.parametrize("driven", [False, True])
def test_calls_that_are_lost_together_may_wait_for_each_other(world: World, driven: bool) -> None:
    """PI-5: and no thread reads any more."""
    first, second = Heard(), Heard()

    def wait_for_the_other() -> None:
        with pytest.raises(PeerLost):
            second.asked(world.pipe) if driven else second.wait()

    world.pipe.post(request(1), then(first, wait_for_the_other))
    world.pipe.post(request(2), second)
    world.pipe.close(PeerLost("given up"))
    assert first.times == second.times == 1


@pytest.mark.parametrize("busy", [("advance", "advance_within"), ("send_some",)])
def test_a_signal_handler_that_interrupts_a_call_cannot_wait(
    world: World, monkeypatch: pytest.MonkeyPatch, busy: tuple[str, ...]
) -> None:
    """PI-6: as a signal handler does; and the interrupted thread goes on."""
    heard, other = Heard(), Heard()
    refused: list[str] = []
    told = threading.Event()

    def interrupted(real: Callable[..., object], *args: object) -> object:
        if not refused:
            refused.append("")
            with pytest.raises(UsageError, match="cannot wait") as caught:
                other.asked(world.pipe)
            refused[0] = str(caught.value)
            told.set()
        return real(*args)

    world.pipe.post(request(2), other)
    for name in busy:
        real = getattr(world.raw, name)
        monkeypatch.setattr(world.raw, name, partial(interrupted, real))
    world.pipe.post(request(1), heard)
    world.pipe.flush()
    world.there.send(reply(1))
    assert heard.asked(world.pipe).call == 1
    assert told.wait(SOON)
    assert "signal handler" in refused[0]
    world.there.send(reply(2))
    assert other.asked(world.pipe).call == 2


def test_a_call_may_be_posted_in_the_midst_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a signal handler, or the garbage collector, which come at any moment."""
    real, heard = world.raw.put, [Heard() for _ in range(10)]
    left = iter(range(1, 10))

    def post(number: int) -> None:
        world.pipe.post(request(number, bytes([number]) * 10_000), heard[number])

    def interrupted(message: Message, parts: list[Buffer]) -> None:
        mine: list[Buffer] = []
        real(message, mine)
        for part in mine:
            parts.append(part)
            for number in left:
                post(number)
                break

    monkeypatch.setattr(world.raw, "put", interrupted)
    poster = threading.Thread(target=post, args=(0,), daemon=True)
    poster.start()
    poster.join(SOON)
    assert not poster.is_alive()
    for _ in heard:
        message = world.there.receive()
        assert message.body == bytes([message.call]) * 10_000
        world.there.send(reply(message.call))
    assert [each.wait().call for each in heard] == list(range(10))
    assert world.pipe.under_way == (0, 0)


class Garbage:
    """Does something when the garbage collector finds it."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.me = self
        self.act = act

    def __del__(self) -> None:
        self.act()


def test_a_finalizer_may_post_calls(world: World) -> None:
    heard = {number: Heard() for number in range(80)}
    dropped: list[int] = []

    def post_dropped(number: int) -> None:
        dropped.append(number)
        world.pipe.post(request(number), heard[number])

    def all_dropped() -> bool:
        gc.collect()  # which does nothing while another thread collects
        return len(dropped) == 40

    def post() -> None:
        before = gc.get_threshold()
        gc.set_threshold(1)  # so that it comes whenever something is made
        try:
            for number in range(0, 80, 2):
                Garbage(partial(post_dropped, number + 1))
                world.pipe.post(request(number), heard[number], SYSTEM_CLOCK.monotonic() + SOON)
                world.pipe.expire(SYSTEM_CLOCK.monotonic())
                world.background.arm(world.pipe)
        finally:
            gc.set_threshold(*before)

    server = beside(lambda: serve(world.there, 80))
    poster = threading.Thread(target=post, daemon=True)
    poster.start()
    poster.join(SOON)
    assert not poster.is_alive()
    until(all_dropped)
    assert [each.wait().call for each in heard.values()] == list(heard)
    server.join()


def test_a_wait_in_a_forked_child_fails(world: World) -> None:
    heard = Heard()
    world.pipe.post(request(1), heard)
    forked: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            signal.alarm(int(SOON))
            try:
                heard.asked(world.pipe)
            except PeerLost:
                os._exit(7)
            os._exit(1)
        forked.append(child)

    with world.pipe._lock, world.pipe._reading:  # which no thread releases in the child
        beside(fork).join()
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 7
    world.there.send(reply(1))
    assert heard.wait().call == 1
