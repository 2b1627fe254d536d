"""The background reader: any thread may close it, and it keeps all deadlines."""

from __future__ import annotations

import logging
import queue
import socket
import threading

import pytest

from holdfast.errors import PeerLost
from holdfast.rpc.client.background_reader import ATTENDED_ROUNDS, BackgroundReader
from holdfast.rpc.client.future import Future
from holdfast.rpc.client.pipe import Pipe
from holdfast.rpc.wire.connection import Connection
from holdfast.rpc.wire.messages import Kind, Message

SOON = 30.0


def lost(error: OSError) -> Exception:
    return PeerLost(f"lost: {error}")


class Heard:
    """What calls are told."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()

    def __call__(self, answer: Message | Exception) -> None:
        self.told.put(answer)

    def wait(self) -> Message | Exception:
        return self.told.get(timeout=SOON)


def request(call: int) -> Message:
    return Message(Kind.PYTHON_CALL, call)


def reply(call: int) -> Message:
    return Message(Kind.REPLY, call)


def test_numbers_of_descriptors_may_be_used_again() -> None:
    background, heard = BackgroundReader("test-read"), Heard()
    for _ in range(50):
        one, other = socket.socketpair()
        with one, other:
            pipe = Pipe(Connection(one), background, lost)
            pipe.post(request(1), heard)
            Connection(other).send(reply(1))
            assert heard.wait() == reply(1)
            pipe.post(request(2), heard)
            next_one = PeerLost("next")
            pipe.close(next_one)
            assert heard.wait() is next_one
    background.close()
    background.close()


def test_it_may_be_closed_by_a_callback() -> None:
    background, closed = BackgroundReader("test-read"), Heard()
    one, other = socket.socketpair()
    with one, other:
        pipe = Pipe(Connection(one), background, lost)

        def close(answer: Message | Exception) -> None:
            pipe.close(PeerLost("closed by a callback"))
            background.close()
            closed(answer)

        pipe.post(request(1), close)
        Connection(other).send(reply(1))
        assert closed.wait() == reply(1)
        background.arm(pipe)
        background.disarm(pipe)
        for thread in tuple(background._threads):
            thread.join(SOON)


def test_a_pipe_is_read_in_the_background_after_its_last_waiter_left() -> None:
    background, heard = BackgroundReader("test-read"), Heard()
    one, other = socket.socketpair()
    with one, other:
        pipe = Pipe(Connection(one), background, lost)
        pipe.attended = ATTENDED_ROUNDS  # by a thread that waited while another made the first call
        pipe.post(request(1), heard)
        Connection(other).send(reply(1))
        assert heard.wait() == reply(1)
        pipe.close(PeerLost("over"))
    background.close()


class Hours:
    """Something that is asked three times."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.left = 3

    def expire(self, now: float) -> bool:
        self.asked.put(now)
        self.left -= 1
        return self.left > 0


def test_it_keeps_the_time_of_others_for_as_long_as_they_say() -> None:
    background = BackgroundReader("test-read")
    hours, after = Hours(), Hours()
    background.time(hours)
    moments = [hours.asked.get(timeout=SOON) for _ in range(3)]
    assert moments == sorted(moments)
    background.time(after)
    for _ in range(3):
        after.asked.get(timeout=SOON)
    background.close()
    assert hours.asked.empty()


class Broken(Hours):
    """Something that fails when it is asked."""

    def expire(self, now: float) -> bool:
        super().expire(now)
        raise IndexError("planted")


def test_a_bug_elsewhere_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    background = BackgroundReader("test-read")
    broken = Broken()
    with caplog.at_level(logging.ERROR, "holdfast.rpc"):
        background.time(broken)
        for _ in range(2):
            broken.asked.get(timeout=SOON)
    background.close()
    assert "IndexError: planted" in caplog.text


def test_a_callback_that_waits_does_not_keep_it_from_others() -> None:
    background, heard = BackgroundReader("test-read"), Heard()
    first, second = socket.socketpair(), socket.socketpair()
    with first[0], first[1], second[0], second[1]:
        one, two = (Pipe(Connection(here), background, lost) for here, _ in (first, second))
        begun, needed = threading.Event(), Future[str]()

        def wait(answer: Message | Exception) -> None:
            begun.set()
            needed.wait(SOON)
            heard(answer)

        one.post(request(1), wait)
        two.post(request(2), lambda _: needed.set_result("by another answer"))
        Connection(first[1]).send(reply(1))
        assert begun.wait(SOON)
        Connection(second[1]).send(reply(2))
        assert heard.wait() == reply(1)
        for thread in background._threads[:-1]:  # it ends when its callback does
            thread.join(SOON)
        assert len(background._threads) == 1
        for pipe in (one, two):
            pipe.close(PeerLost("over"))
        background.close()


def test_a_callback_may_wait_even_if_no_other_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    background, heard = BackgroundReader("test-read"), Heard()
    one, other = socket.socketpair()
    with one, other:
        pipe, inner = Pipe(Connection(one), background, lost), Future[object]()
        inner.driver = pipe

        def wait(answer: Message | Exception) -> None:
            pipe.post(request(2), inner.set_result)
            Connection(other).send(reply(2))
            heard(inner.wait(SOON))  # type: ignore[arg-type]
            heard(answer)

        def none(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", none)
        pipe.post(request(1), wait)
        Connection(other).send(reply(1))
        assert [heard.wait(), heard.wait()] == [reply(2), reply(1)]
        assert "can't start new thread" in caplog.text
        pipe.close(PeerLost("over"))
        background.close()


def test_calls_fail_once_when_a_pipe_ends_that_another_thread_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    background, told = BackgroundReader("test-read"), Hours()
    one, other = socket.socketpair()
    with one:
        pipe = Pipe(Connection(one), background, lost)
        looks: list[None] = []
        monkeypatch.setattr(pipe, "read_for_others", lambda: looks.append(None))
        background.arm(pipe)
        background.disarm(pipe)
        other.close()
        told.left = 50
        background.time(told)
        for _ in range(50):  # it looks at all there is before it asks
            told.asked.get(timeout=SOON)
        assert len(looks) <= 1
        pipe.close(PeerLost("over"))
    background.close()


def test_an_object_that_is_timed_again_while_it_ends_is_called_again() -> None:
    background, asked = BackgroundReader("test-read"), threading.Semaphore(0)

    class Timed:
        times = 0

        def expire(self, now: float) -> bool:
            self.times += 1
            if self.times == 1:
                background.time(self)
            asked.release()
            return False

    timed = Timed()
    background.time(timed)
    assert asked.acquire(timeout=SOON)
    assert asked.acquire(timeout=SOON)
    background.close()
    assert timed.times == 2
