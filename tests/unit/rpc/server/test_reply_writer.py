"""Answers on their way out: whole, one after the other, and without blocking the wrong threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast.rpc.server.reply_writer import ReplyWriter
from holdfast.rpc.wire.connection import Connection, ConnectionEnded
from holdfast.rpc.wire.messages import Kind, Message
from tests.waiting import until

SOON = 20.0
MORE_THAN_FITS = 4 << 20


class Ends:
    """The two ends of a connection."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours)
        self.outlet = ReplyWriter(self.connection)
        self.peer = Connection(theirs)

    def close(self) -> None:
        self.connection.close()
        self.peer.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    try:
        yield made
    finally:
        made.close()
        for thread in threading.enumerate():
            if thread.name == "holdfast-rpc-send":
                thread.join(SOON)


def answer(call: int, size: int = 0) -> Message:
    return Message(Kind.REPLY, call, bytes([call]) * size)


def calls(ends: Ends, count: int) -> list[int]:
    """Read answers; return their numbers."""
    read = [ends.peer.receive() for _ in range(count)]
    assert all(set(bytes(message.body)) <= {message.call} for message in read)
    return [message.call for message in read]


def senders() -> int:
    return sum(thread.name == "holdfast-rpc-send" for thread in threading.enumerate())


def test_gathered_replies_are_sent_in_order(ends: Ends) -> None:
    assert [ends.outlet.gather(answer(call)) for call in (1, 2, 3)] == [1, 2, 3]
    ends.outlet.flush()
    ends.outlet.flush()
    ends.outlet.offer(answer(4))
    assert calls(ends, 4) == [1, 2, 3, 4]
    assert not senders()


def test_ou2_an_offer_does_not_wait_for_a_peer_that_does_not_read(ends: Ends) -> None:
    for call in (1, 2, 3):
        ends.outlet.offer(answer(call, MORE_THAN_FITS))  # or it would hang here
    assert senders() == 1
    assert calls(ends, 3) == [1, 2, 3]


def test_a_flush_waits_and_sends_the_replies_of_other_threads(ends: Ends) -> None:
    ends.outlet.gather(answer(1, MORE_THAN_FITS))
    flusher = threading.Thread(target=ends.outlet.flush)
    flusher.start()
    until(ends.outlet._sending.locked)
    ends.outlet.offer(answer(2))
    ends.outlet.offer(answer(3, MORE_THAN_FITS))
    assert not senders()
    assert calls(ends, 3) == [1, 2, 3]
    flusher.join(SOON)
    assert not flusher.is_alive()


def test_ou1_many_threads_do_not_mix_their_answers(ends: Ends) -> None:
    def offer(first: int) -> None:
        for call in range(first, first + 20):
            ends.outlet.offer(answer(call, 50_000))

    threads = [threading.Thread(target=offer, args=(first,)) for first in range(1, 200, 50)]
    for thread in threads:
        thread.start()
    read = calls(ends, 20 * len(threads))
    for thread in threads:
        thread.join(SOON)
    assert sorted(read) == [
        call for first in range(1, 200, 50) for call in range(first, first + 20)
    ]


def test_a_thread_that_sends_gets_the_end_of_the_connection(ends: Ends) -> None:
    ends.outlet.offer(answer(1, MORE_THAN_FITS))
    assert senders() == 1
    ends.peer.close()
    until(lambda: not ends.outlet._sending.locked())
    with pytest.raises(ConnectionEnded):
        ends.outlet.offer(answer(2))
    ends.outlet.gather(answer(3))
    with pytest.raises(ConnectionEnded):
        ends.outlet.flush()


def test_without_a_thread_to_be_had_the_offer_waits_after_all(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read: list[int] = []
    reader = threading.Thread(target=lambda: read.extend(calls(ends, 2)))
    reader.start()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ends.outlet.offer(answer(1, MORE_THAN_FITS))
    ends.outlet.offer(answer(2, MORE_THAN_FITS))
    reader.join(SOON)
    assert read == [1, 2]
