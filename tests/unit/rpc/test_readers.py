"""The reader of last resort: it may be closed by anybody, and keeps the time of others too."""

from __future__ import annotations

import logging
import queue
import socket
import threading

import pytest

from holdfast.errors import PeerLost
from holdfast.rpc.future import Future
from holdfast.rpc.link import Link
from holdfast.rpc.messages import Kind, Message
from holdfast.rpc.pipe import Pipe
from holdfast.rpc.readers import ATTENDED_ROUNDS, Readers

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
    readers, heard = Readers("test-read"), Heard()
    for _ in range(50):
        one, other = socket.socketpair()
        with one, other:
            pipe = Pipe(Link(one), readers, lost)
            pipe.post(request(1), heard)
            Link(other).send(reply(1))
            assert heard.wait() == reply(1)
            pipe.post(request(2), heard)
            next_one = PeerLost("next")
            pipe.close(next_one)
            assert heard.wait() is next_one
    readers.close()
    readers.close()


def test_it_may_be_closed_by_a_callback() -> None:
    readers, closed = Readers("test-read"), Heard()
    one, other = socket.socketpair()
    with one, other:
        pipe = Pipe(Link(one), readers, lost)

        def close(answer: Message | Exception) -> None:
            pipe.close(PeerLost("closed by a callback"))
            readers.close()
            closed(answer)

        pipe.post(request(1), close)
        Link(other).send(reply(1))
        assert closed.wait() == reply(1)
        readers.arm(pipe)
        readers.disarm(pipe)
        for thread in tuple(readers._threads):
            thread.join(SOON)


def test_a_pipe_is_read_for_others_though_somebody_waited_before_it_was_left() -> None:
    readers, heard = Readers("test-read"), Heard()
    one, other = socket.socketpair()
    with one, other:
        pipe = Pipe(Link(one), readers, lost)
        pipe.attended = ATTENDED_ROUNDS  # by who waited while another thread made the first call
        pipe.post(request(1), heard)
        Link(other).send(reply(1))
        assert heard.wait() == reply(1)
        pipe.close(PeerLost("over"))
    readers.close()


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
    readers = Readers("test-read")
    hours, after = Hours(), Hours()
    readers.time(hours)
    moments = [hours.asked.get(timeout=SOON) for _ in range(3)]
    assert moments == sorted(moments)
    readers.time(after)
    for _ in range(3):
        after.asked.get(timeout=SOON)
    readers.close()
    assert hours.asked.empty()


class Broken(Hours):
    """Something that fails when it is asked."""

    def expire(self, now: float) -> bool:
        super().expire(now)
        raise IndexError("planted")


def test_a_bug_elsewhere_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    readers = Readers("test-read")
    broken = Broken()
    with caplog.at_level(logging.ERROR, "holdfast.rpc"):
        readers.time(broken)
        for _ in range(2):
            broken.asked.get(timeout=SOON)
    readers.close()
    assert "IndexError: planted" in caplog.text


def test_a_callback_that_waits_does_not_keep_it_from_others() -> None:
    readers, heard = Readers("test-read"), Heard()
    first, second = socket.socketpair(), socket.socketpair()
    with first[0], first[1], second[0], second[1]:
        one, two = (Pipe(Link(here), readers, lost) for here, _ in (first, second))
        begun, needed = threading.Event(), Future[str]()

        def wait(answer: Message | Exception) -> None:
            begun.set()
            needed.wait(SOON)
            heard(answer)

        one.post(request(1), wait)
        two.post(request(2), lambda _: needed.set_result("by another answer"))
        Link(first[1]).send(reply(1))
        assert begun.wait(SOON)
        Link(second[1]).send(reply(2))
        assert heard.wait() == reply(1)
        for thread in readers._threads[:-1]:  # it ends when its callback does
            thread.join(SOON)
        assert len(readers._threads) == 1
        for pipe in (one, two):
            pipe.close(PeerLost("over"))
        readers.close()


def test_a_callback_may_wait_though_there_is_no_other_thread_to_be_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    readers, heard = Readers("test-read"), Heard()
    one, other = socket.socketpair()
    with one, other:
        pipe, inner = Pipe(Link(one), readers, lost), Future[object]()
        inner._driver = pipe

        def wait(answer: Message | Exception) -> None:
            pipe.post(request(2), inner.set_result)
            Link(other).send(reply(2))
            heard(inner.wait(SOON))  # type: ignore[arg-type]
            heard(answer)

        def none(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", none)
        pipe.post(request(1), wait)
        Link(other).send(reply(1))
        assert [heard.wait(), heard.wait()] == [reply(2), reply(1)]
        assert "can't start new thread" in caplog.text
        pipe.close(PeerLost("over"))
        readers.close()


def test_the_end_of_a_pipe_that_another_thread_reads_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers, told = Readers("test-read"), Hours()
    one, other = socket.socketpair()
    with one:
        pipe = Pipe(Link(one), readers, lost)
        looks: list[None] = []
        monkeypatch.setattr(pipe, "read_for_others", lambda: looks.append(None))
        readers.arm(pipe)
        readers.disarm(pipe)
        other.close()
        told.left = 50
        readers.time(told)
        for _ in range(50):  # it looks at all there is before it asks
            told.asked.get(timeout=SOON)
        assert len(looks) <= 1
        pipe.close(PeerLost("over"))
    readers.close()


def test_what_is_given_again_while_it_says_that_it_is_over_is_asked_again() -> None:
    readers, asked = Readers("test-read"), threading.Semaphore(0)

    class Timed:
        times = 0

        def expire(self, now: float) -> bool:
            self.times += 1
            if self.times == 1:
                readers.time(self)
            asked.release()
            return False

    timed = Timed()
    readers.time(timed)
    assert asked.acquire(timeout=SOON)
    assert asked.acquire(timeout=SOON)
    readers.close()
    assert timed.times == 2
